"""Account pages keep the shell of who is signed in; where people land; a person's own page."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from django.test import Client

from tenancy.models import AuditEvent, User
from tenancy.services import links
from tests.parties import PASSWORD

pytestmark = pytest.mark.django_db
SIGNED_IN = [
    "/accounts/",
    "/accounts/2fa/totp/activate/",
    "/accounts/2fa/webauthn/add/",
    "/accounts/password/change/",
    "/accounts/reauthenticate/",
]


def client_of(user):
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.mark.parametrize("path", SIGNED_IN)
def test_account_pages_keep_tenant_balance_and_navigation(acme, path):
    client = Client()
    client.post("/accounts/login/", {"login": acme.owner.email, "password": PASSWORD})
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})  # before second factors change
    page = client.get(path).content.decode()
    assert 'href="/keys/"' in page
    assert 'id="balance"' in page
    assert "Acme" in page


def test_an_operator_without_tenant_keeps_the_operators_shell(terms):
    page = client_of(User.objects.create_superuser("root@sluice.example")).get("/accounts/").content.decode()
    assert 'class="side-name">Operate' in page
    assert 'href="/keys/"' not in page


@pytest.mark.parametrize("path", ["/accounts/login/", "/accounts/password/reset/"])
def test_who_is_not_signed_in_sees_no_shell(acme, path):
    page = Client().get(path).content.decode()
    assert 'aria-label="Pages"' not in page


def test_another_tenant_named_on_an_account_page_is_not_shown(acme, other):
    page = acme.client().get("/accounts/", {"tenant": "other"}).content.decode()
    assert "Other" not in page


@pytest.mark.parametrize(("is_operator", "lands"), [(True, "/operate/"), (False, "/")])
def test_operators_land_at_what_runs_and_members_on_their_page(terms, is_operator, lands):
    make = User.objects.create_superuser if is_operator else User.objects.create_user
    user = make("ann@sluice.example", PASSWORD)
    by_link = Client().post(urlsplit(links.mint_link(user=user)).path)
    by_password = Client().post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    assert [(answer.status_code, answer.url) for answer in (by_link, by_password)] == [(302, lands)] * 2
    asked = Client().post("/accounts/login/?next=/usage/", {"login": user.email, "password": PASSWORD})
    assert asked.url == "/usage/"


def test_a_person_gives_themselves_a_name(acme):
    client = acme.client()
    page = client.get("/accounts/").content.decode()
    assert acme.owner.email in page
    assert client.post("/accounts/", {"name": " Ann "}).status_code == 302
    acme.owner.refresh_from_db()
    assert acme.owner.name == "Ann"
    [event] = AuditEvent.objects.unscoped().filter(action="user.changed", target_id=str(acme.owner.id))
    assert (event.before["name"], event.after["name"]) == ("", "Ann")
    assert client.post("/accounts/", {"name": "x" * 121}).status_code == 400
    assert "Ann" in client.get("/people/").content.decode()


def test_nobody_sees_an_account_without_signing_in(acme):
    assert Client().get("/accounts/").status_code == 302
