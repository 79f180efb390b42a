"""Restrictions, changes and rotations of keys by the management API: who may, what is kept, what the trail says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from base.errors import RoleError
from billing.models import SpendBudget
from billing.services.budgets import SpendLimits
from gateway.runtime.principals import load_by_key
from routing.models import PublicModel
from tenancy.models import APIKey, AuditEvent, Membership, User
from tenancy.services import admin_keys, keys, members
from tenancy.services.restrictions import Restrictions
from tests.control.api.test_management import assert_error, bearer, call, role_client

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
    assert changed["day_spent"] == 0
    assert SpendBudget.objects.filter(scope="key", removed_at__isnull=False, amount=None).count() == 3
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


def widenings(later):
    return [
        ("scopes", ["inference"]),
        ("allowed_models", []),
        ("networks", ["192.0.0.0/16"]),
        ("networks", []),
        ("request_limit", None),
        ("day_limit", 101),
        ("day_limit", None),
        ("expires_at", None),
        ("expires_at", later.isoformat()),
    ]


def test_a_member_only_narrows_a_key_and_an_owner_widens_it(acme):
    PublicModel.objects.create(name="one", kinds=["chat"], context_length=10, rate_card="x")
    client, soon = role_client(acme, "member"), timezone.now() + timedelta(days=1)
    maker = User.objects.get(email="member@acme.example")
    limits = Restrictions(("one",), ("192.0.2.0/24",), request_limit=10, spend=SpendLimits(day_limit=100))
    terms = {"scopes": ["chat", "embeddings"], "expires_at": soon, "restrictions": limits, "created_by": maker}
    key, _ = keys.create_key(tenant=acme.tenant, project=acme.project, name="k", **terms)

    def change(by, **fields):
        return by.patch(f"/api/v1/keys/{key.id}/", fields, content_type="application/json")

    for field, value in widenings(soon + timedelta(days=1)):
        assert_error(change(client, **{field: value}), 403, "role_not_allowed", field)
    page = client.get(f"/keys/{key.id}/")
    form = {name: value for name, value in page.context["form"].initial.items() if value is not None}
    answer = client.post(f"/keys/{key.id}/", {**form, "expires": soon.date(), "day_limit": ""})
    assert (answer.status_code, list(answer.context["form"].errors)) == (400, ["day_limit"])
    narrow = {"scopes": ["chat"], "networks": ["192.0.2.7"], "request_limit": 9, "day_limit": 99, "month_limit": 5}
    assert change(client, name="mine", **narrow).status_code == 200
    for field, value in widenings(soon + timedelta(days=1)):
        assert change(acme.client(), **{field: value}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "body", "field"),
    [
        ("post keys/", {"name": "x", "day_limt": 5}, "day_limt"),
        ("post keys/", {"name": "x", "id": "1"}, "id"),
        ("patch keys/{}/", {"project": "x"}, "project"),
        ("patch keys/{}/", {"expires": None}, "expires"),
        ("post keys/{}/rotate/", {"overlap": 0}, "overlap"),
    ],
)
def test_a_field_that_is_none_is_refused(acme, manager, asked, body, field):
    """A limit whose name was misspelt was no limit, with a 201."""
    refused = call(manager, *asked.format(acme.key.id).split(), body)
    assert_error(refused, 400, "unsupported_parameter", field)
    assert "The fields are " in refused.json()["error"]["message"]
    assert APIKey.objects.of(acme.tenant).get().rotated_at is None


@pytest.mark.contract
def test_two_changes_at_once_are_both_kept(acme, manager, monkeypatch):
    """Fields that one change didn't name were written back as they were before the other."""
    real = keys.change_key

    def beside(**given):
        real(tenant=acme.tenant, key=acme.key, change={"scopes": ["chat"], "day_limit": 5})
        return real(**given)

    monkeypatch.setattr(keys, "change_key", beside)
    changed = call(manager, "patch", f"keys/{acme.key.id}/", {"name": "mine"}).json()
    assert (changed["name"], changed["scopes"], changed["day_limit"]) == ("mine", ["chat"], 5)


def test_a_key_for_a_model_that_is_gone_can_still_be_limited(acme, manager):
    APIKey.objects.of(acme.tenant).update(allowed_models=["gone"])
    path = f"keys/{acme.key.id}/"
    assert call(manager, "patch", path, {"request_limit": 1}).json()["request_limit"] == 1
    assert_error(call(manager, "patch", path, {"allowed_models": ["never"]}), 400, "invalid_value", "allowed_models")


@pytest.fixture
def admin_of_acme(acme):
    """The membership of an admin who made two keys that manage."""
    client = role_client(acme, "admin")
    client.post("/api/v1/keys/", {"name": "both", "scopes": ["chat", "management"]}, content_type="application/json")
    client.post("/api/v1/keys/", {"name": "only", "scopes": ["management"]}, content_type="application/json")
    return Membership.objects.of(acme.tenant).get(user__email="admin@acme.example")


@pytest.mark.contract
def test_management_ends_with_the_role(acme, admin_of_acme):
    answer = acme.client().patch(
        f"/api/v1/members/{admin_of_acme.id}/", {"role": "member"}, content_type="application/json"
    )
    assert answer.json()["role"] == "member"
    ended = {key["name"]: (key["revoked"], key["is_admin_key"]) for key in answer.json()["ended_keys"]}
    assert ended == {"both": (False, False), "only": (True, False)}
    assert APIKey.objects.of(acme.tenant).get(name="both").scopes == ["chat"]
    assert APIKey.objects.of(acme.tenant).get(name="only").revoked_at is not None
    events = AuditEvent.objects.of(acme.tenant).filter(actor=acme.owner.email)
    assert {"key.changed", "key.revoked"} <= {event.action for event in events}
    assert call(acme.bearer, "get", "keys/").status_code == 200


@pytest.mark.contract
def test_a_removed_member_s_keys_are_revoked_and_named(acme, admin_of_acme):
    answer = acme.client().delete(f"/api/v1/members/{admin_of_acme.id}/")
    assert {key["name"] for key in answer.json()} == {"both", "only"}
    assert [key.name for key in APIKey.objects.of(acme.tenant).filter(revoked_at=None)] == ["all"]


@pytest.mark.parametrize("way", ["made", "widened"])
def test_a_management_key_made_by_an_admin_key_ends_with_its_owner(acme, manager, way):
    role_client(acme, "admin")
    Membership.objects.of(acme.tenant).filter(user__email="admin@acme.example").update(role="owner")
    robot = call(manager, "post", "keys/", {"name": "robot"}).json()
    scopes = ["management", "inference"] if way == "made" else ["inference"]
    manages = call(manager, "post", "keys/", {"name": "manages", "scopes": scopes}).json()
    if way == "widened":
        call(manager, "patch", f"keys/{manages['id']}/", {"scopes": ["management"]})
    assert call(bearer(manages["secret"]), "get", "keys/").status_code == 200
    members.remove_member(tenant=acme.tenant, membership=acme.membership)
    assert_error(call(bearer(manages["secret"]), "get", "keys/"), 401, "invalid_api_key")
    assert load_by_key(robot["secret"]).project == acme.project.id


def test_a_deactivated_person_manages_nothing(acme, manager):
    call(manager, "get", "keys/")
    User.objects.filter(id=acme.owner.id).update(is_active=False)
    assert_error(call(manager, "get", "keys/"), 401, "invalid_api_key")
    assert_error(call(acme.bearer, "get", "keys/"), 403, "insufficient_scope")


@pytest.mark.contract
@pytest.mark.parametrize("make", [keys.create_key, admin_keys.create_admin_key])
def test_nothing_is_made_beside_a_removal(acme, make):
    """The caller's role was read before; they were removed by the time that the key is made."""
    terms = {"project": acme.project} if make is keys.create_key else {}
    Membership.objects.of(acme.tenant).update(is_active=False)
    with pytest.raises(RoleError):
        make(tenant=acme.tenant, name="late", created_by=acme.owner, **terms)
