"""Restrictions, changes and rotations of keys by the management API: who may, what is kept, what the trail says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.models import Budget
from gateway.models import APIKey, AuditEvent
from gateway.runtime.principals import load_by_key
from gateway.services import keys
from gateway.services.restrictions import Restrictions
from tests.gateway.api.test_management import assert_error, bearer, call

pytestmark = pytest.mark.django_db
TERMS = {
    "networks": ["192.0.2.7/24", "2001:db8::1"],
    "request_limit": 10,
    "credit_limit": 5_000,
    "concurrency": 2,
    "day_limit": 100,
    "month_limit": 1_000,
    "total_limit": None,
}


@pytest.fixture
def manager(acme):
    """What an admin key sends."""
    return acme.admin_bearer


def test_restrictions_are_kept_shown_and_on_the_trail(acme, manager):
    made = call(manager, "post", "keys/", {"name": "ci", **TERMS})
    assert made.status_code == 201, made.content
    shown = {name: made.json()[name] for name in TERMS}
    assert shown == {**TERMS, "networks": ["192.0.2.0/24", "2001:db8::1/128"]}
    assert (made.json()["day_spent"], made.json()["total_spent"]) == (0, 0)
    path = f"keys/{made.json()['id']}/"
    changed = call(manager, "patch", path, {"request_limit": None, "day_limit": None, "month_limit": None}).json()
    assert (changed["request_limit"], changed["month_limit"], changed["credit_limit"]) == (None, None, 5_000)
    assert changed["day_spent"] is None
    assert not Budget.objects.exists()
    spend, terms = AuditEvent.objects.of(acme.tenant).filter(
        target_id=made.json()["id"], action__in=["key.changed", "key.spend_limits"]
    )[:2]
    assert (terms.before, terms.after) == ({"request_limit": 10}, {"request_limit": None})
    assert (spend.before["day_limit_micro"], spend.after["day_limit_micro"]) == (100, None)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"networks": ["192.0.2.300"]}, "networks"),
        ({"networks": ["not one"]}, "networks"),
        ({"allowed_models": ["nothing"]}, "allowed_models"),
        ({"request_limit": 0}, "request_limit"),
        ({"concurrency": -1}, "concurrency"),
        ({"day_limit": -1}, "day_limit"),
        ({"scopes": ["models.write"]}, "scopes.0"),
    ],
)
def test_what_is_wrong_is_named(acme, manager, wrong, field):
    assert_error(call(manager, "post", "keys/", {"name": "x", **wrong}), 400, "invalid_value", field)


def test_a_rotated_key_has_two_secrets_for_a_while(acme, manager):
    made = call(manager, "post", "keys/", {"name": "ci"}).json()
    rotated = call(manager, "post", f"keys/{made['id']}/rotate/", {"overlap_hours": 2})
    assert rotated.status_code == 200
    assert rotated.headers["cache-control"] == "no-store"
    body = rotated.json()
    assert (body["id"], body["previous_last_four"]) == (made["id"], made["secret"][-4:])
    assert body["secret"] != made["secret"]
    now = timezone.now()
    old, new = load_by_key(made["secret"]), load_by_key(body["secret"])
    assert old.api_key == new.api_key
    assert new.expires_at is None
    assert timedelta(hours=1) < old.expires_at - now <= timedelta(hours=2)
    call(manager, "post", f"keys/{made['id']}/end-previous/")
    assert load_by_key(made["secret"]).code == "invalid_api_key"
    assert load_by_key(body["secret"]).expires_at is None
    event = AuditEvent.objects.of(acme.tenant).filter(action="key.changed", target_id=made["id"]).order_by("id").first()
    assert event.after["previous_last_four"] == made["secret"][-4:]
    assert made["secret"] not in str(event.after)


@pytest.mark.parametrize("way", ["at once", "later", "after its time"])
def test_an_old_secret_that_is_ended_works_at_no_machine_whatever_the_clocks_say(acme, monkeypatch, way):
    """The machine that ends it is five minutes ahead of the one that is asked with it."""
    key, secret = keys.create_key(tenant=acme.tenant, project=acme.project, name="k")
    real = timezone.now
    with monkeypatch.context() as ahead:
        ahead.setattr(timezone, "now", lambda: real() + timedelta(minutes=5))
        overlap = {"at once": timedelta(), "later": timedelta(hours=1), "after its time": timedelta(microseconds=1)}
        keys.rotate_key(tenant=acme.tenant, key=key, overlap=overlap[way])
        if way != "at once":
            keys.end_previous(tenant=acme.tenant, key=key)
    assert load_by_key(secret).code == "invalid_api_key"


def test_revocation_ends_both_secrets(acme, manager):
    key, secret = keys.create_key(tenant=acme.tenant, project=acme.project, name="k")
    _, new = keys.rotate_key(tenant=acme.tenant, key=key)
    keys.revoke_key(tenant=acme.tenant, key=key)
    assert {load_by_key(one).code for one in (secret, new)} == {"api_key_revoked"}


def test_a_second_rotation_ends_the_first_secret(acme):
    key, first = keys.create_key(tenant=acme.tenant, project=acme.project, name="k")
    _, second = keys.rotate_key(tenant=acme.tenant, key=key)
    _, third = keys.rotate_key(tenant=acme.tenant, key=key)
    assert load_by_key(first).code == "invalid_api_key"
    assert load_by_key(second).api_key == load_by_key(third).api_key == key.id


def test_the_old_secret_of_a_management_key_ends_too(acme, manager):
    rotated = call(manager, "post", f"keys/{acme.key.id}/rotate/", {"overlap_hours": 1}).json()
    assert call(acme.bearer, "get", "keys/").status_code == 200
    APIKey.objects.of(acme.tenant).filter(id=acme.key.id).update(previous_until=timezone.now())
    assert_error(call(acme.bearer, "get", "keys/"), 401, "invalid_api_key")
    assert call(bearer(rotated["secret"]), "get", "keys/").status_code == 200


@pytest.mark.parametrize("hours", [-1, 721, "x"])
def test_an_overlap_is_bounded(acme, manager, hours):
    refused = call(manager, "post", f"keys/{acme.key.id}/rotate/", {"overlap_hours": hours})
    assert_error(refused, 400, "invalid_value", "overlap_hours")


def test_a_key_manages_only_from_its_networks(acme):
    terms = {"scopes": ["management"], "restrictions": Restrictions(networks=("192.0.2.0/24",))}
    _, secret = keys.create_key(tenant=acme.tenant, project=acme.project, name="k", **terms)
    assert call(bearer(secret), "get", "keys/", REMOTE_ADDR="192.0.2.9").status_code == 200
    assert_error(call(bearer(secret), "get", "keys/", REMOTE_ADDR="192.0.3.9"), 403, "address_not_allowed")


def test_a_tenant_changes_no_others_key(acme, other, manager):
    key, _ = keys.create_key(tenant=other.tenant, project=other.project, name="theirs")
    for method, path in (("patch", f"keys/{key.id}/"), ("post", f"keys/{key.id}/rotate/")):
        assert call(manager, method, path, {}).status_code == 404
