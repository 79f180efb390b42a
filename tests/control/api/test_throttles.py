"""Floods of the management API and of the pages that sign people in."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from rest_framework.throttling import SimpleRateThrottle

from tenancy.models import APIKey, Invitation
from tenancy.services import admin_keys, links, members
from tests.control.api.test_management import assert_error
from tests.gateway.post import sent_mail

pytestmark = [pytest.mark.money, pytest.mark.django_db]


@pytest.fixture
def clock(monkeypatch):
    """The throttles' clock, which stands until it is moved."""
    at = [1_000_000.0]
    monkeypatch.setattr(SimpleRateThrottle, "timer", lambda _: at[0])
    return at


def make(client, name="k"):
    return client.post("/api/v1/keys/", json.dumps({"name": name}), content_type="application/json")


def test_a_flood_of_keys_ends_with_an_honest_retry_after(acme, settings, clock):
    settings.SLUICE_API_RATE_CALLER = "5/minute"
    client = Client(headers=acme.admin_bearer)
    for _ in range(5):
        assert make(client).status_code == 201
        clock[0] += 0.5
    refused = make(client)
    assert_error(refused, 429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "58"  # 57.5 s until the first of the five is a minute old
    assert APIKey.objects.of(acme.tenant).count() == 6
    _, secret = admin_keys.create_admin_key(tenant=acme.tenant, name="another")
    assert make(Client(headers={"authorization": f"Bearer {secret}"})).status_code == 201  # another key has its own
    clock[0] += 58
    assert make(client).status_code == 201


def test_a_signed_in_user_is_counted_too(acme, settings, clock):
    settings.SLUICE_API_RATE_CALLER = "2/minute"
    client = acme.client()
    assert [client.get("/api/v1/keys/").status_code for _ in range(3)] == [200, 200, 429]


def test_guessing_keys_is_stopped_before_a_query(settings, clock, django_assert_num_queries):
    settings.SLUICE_API_RATE_ADDRESS = "3/minute"
    guesser = Client(REMOTE_ADDR="192.0.2.1", headers={"authorization": "Bearer sk-sluice-guess"})
    assert [guesser.get("/api/v1/keys/").status_code for _ in range(3)] == [401] * 3
    with django_assert_num_queries(0):
        refused = guesser.get("/api/v1/keys/")
    assert_error(refused, 429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "60"


def test_a_network_of_ipv6_is_one_client(settings, clock, acme):
    """Whoever has one address of IPv6 has 2^64, often 2^72: a limit by address would be none."""
    settings.SLUICE_API_RATE_ADDRESS = "3/minute"
    guess = {"authorization": "Bearer sk-sluice-guess"}
    asked = [Client(REMOTE_ADDR=f"2001:db8::{host}", headers=guess).get("/api/v1/keys/") for host in range(1, 5)]
    assert [page.status_code for page in asked] == [401, 401, 401, 429]
    assert Client(REMOTE_ADDR="2001:db8:0:100::1", headers=guess).get("/api/v1/keys/").status_code == 401
    form = {"login": acme.owner.email, "password": "wrong"}
    tried = [Client(REMOTE_ADDR=f"2001:db8::{host}").post("/accounts/login/", form) for host in range(1, 7)]
    locked = ["Too many failed login attempts" in page.content.decode() for page in tried]
    assert locked == [False] * 5 + [True]
    assert Client(REMOTE_ADDR="192.0.2.2").get("/api/v1/keys/").status_code == 401


def test_a_flood_of_invitation_mails_ends(acme, settings, clock):
    settings.SLUICE_INVITATION_RATE = "3/hour"
    client = acme.client()
    answers = [
        client.post("/api/v1/members/", json.dumps({"email": "x@x.example"}), content_type="application/json")
        for _ in range(5)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429, 429]
    assert len(sent_mail()) == 3
    assert client.get("/api/v1/members/").status_code == 200
    assert Invitation.objects.of(acme.tenant).count() == 2


def test_pages_that_sign_people_in_are_limited_by_address(acme, settings):
    limit = {"login": "3/m/ip", "open_link": "3/m/ip", "open_invitation": "3/m/ip"}
    settings.ACCOUNT_RATE_LIMITS = limit
    _, invitation = members.invite_member(tenant=acme.tenant, email="x@x.example")
    for address in (links.mint_link(user=acme.owner), invitation):
        path = "/" + address.split("/", 3)[3]
        client = Client(REMOTE_ADDR="192.0.2.1")
        assert [client.get(path).status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = client.post(path)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "60"
        assert "Too many requests" in refused.content.decode()
        assert Client(REMOTE_ADDR="192.0.2.2").get(path).status_code == 200
    client = Client(REMOTE_ADDR="192.0.2.1")
    form = {"login": "nobody@x.example", "password": "wrong"}
    assert [client.post("/accounts/login/", form).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_deep_json_is_bad_input(acme):
    client = Client(headers=acme.admin_bearer)
    for body in ("[" * 100_000, '{"a":' * 100_000):
        answer = client.post("/api/v1/keys/", body, content_type="application/json")
        assert_error(answer, 400, "parse_error")


@pytest.mark.parametrize(
    "path", ["/api/v1/usage/?model=%00", "/usage/?model=%00", "/usage/export.csv?model=%00", "/audit/?action=%00"]
)
def test_a_nul_is_no_fault_of_ours(acme, path):
    assert acme.client().get(path).status_code in (200, 400, 404)
