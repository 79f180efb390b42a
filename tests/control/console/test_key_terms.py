"""What a key may do and take, on the tenant's pages; its rotation; admin keys."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from control.screens.key_forms import KeyTermsForm
from gateway.runtime.principals import load_by_key
from tenancy.models import AdminAPIKey, APIKey, Membership
from tenancy.services import admin_keys, keys
from tenancy.services.restrictions import spending_of
from tests.control.console.test_keys import SECRET, made, wanted

pytestmark = pytest.mark.django_db
LIMITS = {"networks": "192.0.2.0/24\n2001:db8::1", "request_limit": "10", "credit_limit": "1.5", "day_limit": "2,000"}


def test_a_key_is_made_with_limits_and_changed(acme):
    client = acme.client()
    client.post("/keys/new/", wanted(acme, access="restricted", endpoints=["chat"], lifetime="30", **LIMITS))
    key = made(acme).get()
    assert (key.scopes, key.request_limit, key.credit_limit) == (["chat"], 10, 1_500_000)
    assert key.networks == ["192.0.2.0/24", "2001:db8::1/128"]
    assert spending_of(key).limits.day_limit == 2_000_000_000
    assert timedelta(days=29) < key.expires_at - timezone.now() < timedelta(days=31)
    listed = client.get("/keys/").content.decode()
    for shown in ("10 requests a minute", "0 of 2000 credits a day", "from 192.0.2.0/24"):
        assert shown in listed
    page = client.get(f"/keys/{key.id}/")
    assert "192.0.2.0/24" in page.content.decode()
    initial = {name: value for name, value in page.context["form"].initial.items() if value is not None}
    assert (
        client.post(f"/keys/{key.id}/", {**initial, "expires": key.expires_at.date(), "day_limit": ""}).status_code
        == 302
    )
    key = made(acme).get()
    assert (key.scopes, key.request_limit, spending_of(key).limits.day_limit) == (["chat"], 10, None)
    assert "credits a day" not in client.get("/keys/").content.decode()


def test_terms_chosen_over_others_than_the_key_has_are_refused_once(acme):
    """Two people change one key: the later would lift the earlier's limit without having seen it."""
    client = acme.client()
    client.post("/keys/new/", wanted(acme, access="restricted", endpoints=["chat"]))
    key, mine = made(acme).get(), APIKey.objects.of(acme.tenant)
    initial = client.get(f"/keys/{key.id}/").context["form"].initial
    chosen = {name: value for name, value in initial.items() if value is not None} | {"name": "renamed"}
    keys.change_key(tenant=acme.tenant, key=key, change={"request_limit": 10})
    answer = client.post(f"/keys/{key.id}/", chosen)
    assert answer.status_code == 400
    assert "was changed meanwhile" in answer.content.decode()
    assert (mine.get(id=key.id).name, mine.get(id=key.id).request_limit) == ("ci", 10)
    again = answer.context["form"]["seen"].value()
    assert client.post(f"/keys/{key.id}/", chosen | {"seen": again}).status_code == 302
    assert (mine.get(id=key.id).name, mine.get(id=key.id).request_limit) == ("renamed", None)


def test_a_change_while_the_form_is_read_is_not_lost(acme, monkeypatch):
    client = acme.client()
    client.post("/keys/new/", wanted(acme, access="restricted", endpoints=["chat"]))
    key, is_valid = made(acme).get(), KeyTermsForm.is_valid
    initial = client.get(f"/keys/{key.id}/").context["form"].initial

    def and_changed_meanwhile(form):
        keys.change_key(tenant=acme.tenant, key=key, change={"request_limit": 10})
        return is_valid(form)

    monkeypatch.setattr(KeyTermsForm, "is_valid", and_changed_meanwhile)
    chosen = {name: value for name, value in initial.items() if value is not None} | {"name": "renamed"}
    answer = client.post(f"/keys/{key.id}/", chosen)
    assert "was changed meanwhile" in answer.content.decode()
    key = made(acme).get()
    assert (key.name, key.request_limit) == ("ci", 10)


@pytest.mark.parametrize(
    "wrong", [{"networks": "here"}, {"day_limit": "-1"}, {"credit_limit": "much"}, {"request_limit": "0"}]
)
def test_what_is_wrong_is_shown(acme, wrong):
    answer = acme.client().post("/keys/new/", wanted(acme, **wrong))
    assert answer.status_code == 400
    assert "errorlist" in answer.content.decode()
    assert not made(acme).exists()


def test_a_key_is_rotated_and_its_old_secret_ended(acme):
    client = acme.client()
    key, old = keys.create_key(tenant=acme.tenant, project=acme.project, name="ci", created_by=acme.owner)
    answer = client.post(f"/keys/{key.id}/rotate/", {"overlap": "24"})
    [new] = set(SECRET.findall(client.get(answer.url).content.decode()))
    assert load_by_key(old).api_key == load_by_key(new).api_key == key.id
    assert "End it now" in client.get(f"/keys/{key.id}/").content.decode()
    client.post(f"/keys/{key.id}/rotate/", {"end": "1"})
    assert load_by_key(old).code == "invalid_api_key"
    refused = client.post(f"/keys/{key.id}/rotate/", {"overlap": "9999"}, follow=True)
    assert "between 0 and 720 hours" in refused.content.decode()


def test_only_owners_make_admin_keys_which_may_what_owners_may(acme):
    Membership.objects.of(acme.tenant).update(role=Membership.Role.ADMIN)
    admin_keys.create_admin_key(tenant=acme.tenant, name="terraform")
    client = acme.client()
    page = client.get("/keys/admin/").content.decode()
    assert "terraform" in page
    assert "Create admin key" not in page
    assert client.post("/keys/admin/", {"name": "mine"}).status_code == 404
    [key] = AdminAPIKey.objects.of(acme.tenant)
    client.post(f"/keys/admin/{key.id}/revoke/")
    assert AdminAPIKey.objects.of(acme.tenant).get().revoked_at is not None


def test_an_admin_key_is_shown_once_and_revoked(acme):
    client = acme.client()
    answer = client.post("/keys/admin/", {"name": "terraform"})
    key = AdminAPIKey.objects.of(acme.tenant).get()
    assert "sk-sluice-admin-" in client.get(answer.url).content.decode()
    assert "was shown already" in client.get(answer.url).content.decode()
    assert client.post("/keys/admin/", {"name": " "}).status_code == 400
    AdminAPIKey.objects.of(acme.tenant).update(expires_at=timezone.now())
    assert "</svg>expired</span>" in client.get("/keys/admin/").content.decode()
    client.post(f"/keys/admin/{key.id}/revoke/")
    assert "revoked" in client.get("/keys/admin/").content.decode()
    assert AdminAPIKey.objects.of(acme.tenant).get().revoked_at is not None
    assert not APIKey.objects.of(acme.tenant).filter(name="terraform").exists()
