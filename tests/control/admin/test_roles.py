"""Operators' roles: what each sees and does, and that nobody gives what they don't have."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from billing.models import Wallet
from tenancy.models import APIKey, SignInLink, User
from tenancy.services import roles

pytestmark = pytest.mark.django_db
BACKEND = "django.contrib.auth.backends.ModelBackend"


def client_of(user):
    client = Client()
    client.force_login(user, backend=BACKEND)
    return client


@pytest.fixture
def staff(db):
    """Return a function that makes an operator in the named groups, with further permissions."""
    roles.ensure_roles()

    def make(*groups, permissions=()):
        user = User.objects.create_user(f"{'-'.join(groups) or 'nobody'}@example.com", is_staff=True)
        user.groups.set(Group.objects.filter(name__in=groups))
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return user

    return make


def test_setup_makes_the_roles_as_often_as_wanted(db):
    Group.objects.create(name="of our own")
    for _ in range(2):
        call_command("setup", verbosity=0)
        assert set(Group.objects.values_list("name", flat=True)) == {*roles.ROLES, "of our own"}
    viewer = Group.objects.get(name="viewer").permissions
    assert viewer.exists()
    assert not viewer.exclude(codename__startswith="view_").exists()
    Group.objects.get(name="support").permissions.clear()
    roles.ensure_roles()
    assert Group.objects.get(name="support").permissions.filter(codename="change_apikey").exists()


def test_without_a_role_an_operator_sees_no_table(staff, acme):
    page = client_of(staff()).get(reverse("admin:index")).content.decode()
    assert reverse("admin:billing_wallet_changelist") not in page
    assert client_of(User.objects.get(email="nobody@example.com")).get("/admin/billing/wallet/").status_code == 403


@pytest.mark.parametrize(
    ("role", "may_not"),
    [
        ("viewer", ["gateway_apikey_add", "billing_creditgrant_add", "gateway_tenant_add", "gateway_user_add"]),
        ("support", ["gateway_apikey_add", "billing_creditgrant_add", "gateway_membership_add", "gateway_user_add"]),
        ("billing", ["gateway_apikey_add", "gateway_tenant_add", "routing_deployment_add", "gateway_user_add"]),
        ("admin", []),
    ],
)
def test_a_role_sees_all_and_does_its_part(staff, acme, role, may_not):
    client = client_of(staff(role))
    page = client.get(reverse("admin:index")).content.decode()
    for path in re.findall(r'href="(/admin/\w+/\w+/)"', page):
        assert client.get(path).status_code == 200, path
    assert reverse("admin:billing_wallet_changelist") in page
    for name in may_not:
        assert client.get(reverse(f"admin:{name}")).status_code == 403, name
    may = {"billing": "billing_creditgrant_add", "admin": "gateway_tenant_add"}.get(role)
    assert may is None or client.get(reverse(f"admin:{may}")).status_code == 200


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("billing", False), ("support", True), ("admin", True)])
def test_actions_ask_too(staff, acme, role, may):
    client = client_of(staff(role))
    chosen = {"action": "revoke", "_selected_action": [str(acme.key.pk)]}
    client.post(reverse("admin:gateway_apikey_changelist"), chosen)
    assert (APIKey.objects.of(acme.tenant).get().revoked_at is not None) is may
    wallet = Wallet.objects.get(tenant=acme.tenant)
    granting = client.get(f"/admin/billing/wallet/{wallet.pk}/grant/").status_code
    assert granting == (302 if role in ("billing", "admin") else 403)
    for path in (f"wallet/{wallet.pk}/freeze", f"subscription/{acme.tenant.subscriptions.get().pk}/end"):
        asked = client.get(f"/admin/billing/{path}/").status_code
        assert asked == (200 if role in ("billing", "admin") else 403), path


def test_who_may_change_users_makes_no_superuser(staff):
    user = staff(permissions=["view_user", "change_user", "add_user"])
    client = client_of(user)
    path = reverse("admin:gateway_user_change", args=[user.pk])
    form = {"email": user.email, "name": "", "is_active": "on", "is_staff": "on", "is_superuser": "on"}
    client.post(path, form)
    client.post(path, {**form, "groups": [str(group.pk) for group in Group.objects.all()]})
    client.post(reverse("admin:gateway_user_add"), {"email": "new@x.example", "is_superuser": "on"})
    assert not User.objects.filter(is_superuser=True).exists()
    assert not User.objects.get(pk=user.pk).groups.exists()
    assert "is_superuser" not in client.get(path).content.decode()


@pytest.mark.parametrize("is_active", [True, False], ids=["active", "deactivated"])
def test_nobody_changes_who_may_do_more(staff, is_active):
    """Nor who could, once activated: the same form does that."""
    weak = staff(permissions=["view_user", "change_user"])
    for strong in (staff("admin"), User.objects.create_superuser("root@example.com")):
        User.objects.filter(pk=strong.pk).update(is_active=is_active)
        client = client_of(weak)
        path = reverse("admin:gateway_user_change", args=[strong.pk])
        form = {"email": "mine@evil.example", "name": "", "is_active": "on", "is_staff": "on"}
        assert client.post(path, form).status_code == 403
        passwords = {"password1": "kvb3!xq9-plum", "password2": "kvb3!xq9-plum", "usable_password": "true"}
        assert client.post(f"/admin/gateway/user/{strong.pk}/password/", passwords).status_code == 403
        strong.refresh_from_db()
        assert strong.email != "mine@evil.example"
        assert not strong.has_usable_password()


def test_an_admin_gives_the_roles_that_it_has(staff):
    client = client_of(staff("admin"))
    Group.objects.create(name="beyond").permissions.set(Permission.objects.filter(content_type__app_label="mfa"))
    new = staff()
    form = {"email": new.email, "name": "", "is_active": "on", "is_staff": "on"}
    path = reverse("admin:gateway_user_change", args=[new.pk])
    beyond = str(Group.objects.get(name="beyond").pk)
    assert client.post(path, {**form, "groups": [beyond]}).status_code == 200
    assert not new.groups.exists()
    support = str(Group.objects.get(name="support").pk)
    assert client.post(path, {**form, "groups": [support]}).status_code == 302
    assert [group.name for group in new.groups.all()] == ["support"]


def test_opening_the_address_of_a_sign_in_link_mints_none(staff, acme):
    client = client_of(User.objects.create_superuser("root@example.com"))
    path = f"/admin/gateway/user/{acme.owner.pk}/sign-in-link/"
    assert "Make a link" in client.get(path).content.decode()
    assert not SignInLink.objects.exists()
    assert "/links/" in client.post(path, follow=True).content.decode()
    assert client_of(staff("admin")).post(path).status_code == 403
    guarded = Client(enforce_csrf_checks=True)
    guarded.force_login(User.objects.get(email="root@example.com"), backend=BACKEND)
    assert guarded.post(path).status_code == 403
    assert SignInLink.objects.count() == 1


def test_wrong_passwords_lock_out_where_they_came_from_and_nobody_else(db):
    cache.clear()
    User.objects.create_superuser("root@example.com", "a long password")
    guess = {"login": "root@example.com", "password": "wrong"}
    right = {**guess, "password": "a long password"}
    guesser, operator = Client(REMOTE_ADDR="192.0.2.1"), Client(REMOTE_ADDR="192.0.2.2")
    for _ in range(5):
        guesser.post("/accounts/login/", guess)
    locked = guesser.post("/accounts/login/", right)
    assert "Too many" in locked.content.decode()
    assert "_auth_user_id" not in guesser.session
    operator.post("/accounts/login/", right)
    assert "_auth_user_id" in operator.session
