"""The page of alerts, of a tenant and of the operators."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone

from tenancy.models import Alert, Delivery, Membership, User, WebHook
from tenancy.services import hooks
from tenancy.services.roles import ensure_roles

pytestmark = pytest.mark.django_db
ADDRESSES = {"tenant": "/settings/alerts/", "operator": "/operate/system/alerts/"}


@pytest.fixture
def sides(acme):
    operator = User.objects.create_superuser("operator@sluice.example")
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    return {"tenant": (acme.client(), acme.tenant), "operator": (client, None)}


def raise_alert(tenant, title, **more):
    now = timezone.now()
    fields = {"severity": "warning", "text": "t", "raised_at": now, "seen_at": now, "told_at": now, **more}
    return Alert.objects.create(key=title, kind="k", title=title, tenant=tenant, **fields)


@pytest.mark.parametrize("side", ADDRESSES)
def test_it_shows_ones_own_and_nobody_elses(sides, other, side):
    client, tenant = sides[side]
    raise_alert(tenant, "ours")
    raise_alert(tenant, "gone", resolved_at=timezone.now())
    raise_alert(tenant, "untold", told_at=None)
    raise_alert(other.tenant, "theirs")
    hooks.make_hook(tenant=other.tenant, url="https://theirs.example/")
    page = client.get(ADDRESSES[side]).content.decode()
    assert all(title in page for title in ("ours", "gone"))
    assert not any(title in page for title in ("untold", "theirs"))


@pytest.mark.parametrize("side", ADDRESSES)
def test_a_hook_is_made_tried_switched_and_deleted(sides, side):
    client, tenant = sides[side]
    address = ADDRESSES[side]
    page = client.post(address, {"url": "https://there.example/hook"}).content.decode()
    secret = re.search(r'<code id="secret">(whsec_[^<]+)', page)[1]
    hook = WebHook.objects.get()
    assert hook.tenant == tenant
    assert secret not in client.get(address).content.decode()
    for action in ("test", "off", "on"):
        assert client.post(address, {"action": action, "id": str(hook.pk)}).status_code == 302
    row = Delivery.objects.get()
    Delivery.objects.update(state="failed", error="It answered 500.", attempts=8)
    assert "It answered 500." in client.get(address).content.decode()
    client.post(address, {"action": "replay", "id": str(row.pk)})
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("waiting", 0)
    client.post(address, {"action": "delete", "id": str(hook.pk)})
    assert not WebHook.objects.exists()
    assert not Delivery.objects.exists()


@pytest.mark.parametrize("action", ["test", "off", "delete", "replay"])
@pytest.mark.parametrize("side", ADDRESSES)
def test_nobody_touches_anothers(sides, other, side, action):
    hook, _ = hooks.make_hook(tenant=other.tenant, url="https://theirs.example/")
    row = hooks.send_test(hook)
    Delivery.objects.update(state="failed")
    found = row.pk if action == "replay" else hook.pk
    assert sides[side][0].post(ADDRESSES[side], {"action": action, "id": str(found)}).status_code == 404
    assert WebHook.objects.get().is_active
    assert Delivery.objects.get().state == "failed"


@pytest.mark.parametrize("identifier", ["", "x", "0" * 32])
def test_an_id_of_nothing_is_not_found(sides, identifier):
    client, _ = sides["tenant"]
    assert client.post(ADDRESSES["tenant"], {"action": "test", "id": identifier}).status_code == 404


def test_a_wrong_address_is_said_at_its_field(sides):
    answer = sides["tenant"][0].post(ADDRESSES["tenant"], {"url": "https://u:p@x.example/"})
    assert answer.status_code == 400
    assert "An address can hold no password" in answer.content.decode()


def member(party, role):
    user = User.objects.create_user(f"{role}@acme.example")
    Membership(tenant=party.tenant, user=user, role=role).save(force_insert=True)
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_roles_that_only_look_change_nothing(acme):
    ensure_roles()
    viewer = User.objects.create_user("viewer@sluice.example", is_staff=True)
    viewer.groups.add(Group.objects.get(name="viewer"))
    client = Client()
    client.force_login(viewer, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get(ADDRESSES["operator"]).status_code == 200
    assert client.post(ADDRESSES["operator"], {"url": "https://x.example/"}).status_code == 403
    assert member(acme, "billing").post(ADDRESSES["tenant"], {"url": "https://x.example/"}).status_code == 403
    assert member(acme, "member").get(ADDRESSES["tenant"]).status_code == 404
    assert not WebHook.objects.exists()


def test_queries_do_not_grow(sides, acme, django_assert_max_num_queries):
    for number in range(4):
        hook, _ = hooks.make_hook(tenant=acme.tenant, url=f"https://x.example/{number}")
        hooks.send_test(hook)
        raise_alert(acme.tenant, f"a{number}")
    with django_assert_max_num_queries(15):
        sides["tenant"][0].get(ADDRESSES["tenant"])
