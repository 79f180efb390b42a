"""Signing in: by password, by link, by invitation; sign-up where the operator opens it."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from allauth.account.models import EmailAddress
from allauth.account.signals import email_confirmed
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.test import Client
from django.utils import timezone

from billing.models import CreditGrant, Plan
from tenancy.models import Membership, SignInLink, Tenant, User
from tenancy.services import links, members, people
from tests.gateway.post import move, sent_mail

pytestmark = pytest.mark.django_db
CHOSEN = {"new_password1": "kvb3!xq9-plum", "new_password2": "kvb3!xq9-plum"}


def path_of(address):
    return urlsplit(address).path


def signed_in(client):
    return "_auth_user_id" in client.session


def change_password(user, password="another long password"):
    user.set_password(password)
    user.save()


@pytest.fixture
def user(db):
    return User.objects.create_user("ann@example.com", "a long password")


def test_link_signs_in_once_and_only_by_post(user):
    path = path_of(links.mint_link(user=user))
    client = Client()
    page = client.get(path)
    assert page.status_code == 200
    assert user.email in page.content.decode()
    assert not signed_in(client)
    assert client.post(path).status_code == 302
    assert signed_in(client)
    again = Client()
    assert again.post(path).status_code == 410
    assert again.get(path).status_code == 410
    assert not signed_in(again)


def test_link_needs_csrf(user):
    client = Client(enforce_csrf_checks=True)
    assert client.post(path_of(links.mint_link(user=user))).status_code == 403


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1)),
        lambda: User.objects.update(is_active=False),
        lambda: change_password(User.objects.get()),
        lambda: move(User.objects.get(), "bob@example.com"),
    ],
)
def test_old_link_and_one_of_another_password_or_address_and_deactivated_user_are_refused(user, spoil):
    path = path_of(links.mint_link(user=user))
    spoil()
    client = Client()
    assert client.get(path).status_code == 410
    assert client.post(path).status_code == 410
    assert not signed_in(client)


def test_link_lasts_when_nothing_but_the_name_is_changed(user):
    path = path_of(links.mint_link(user=user))
    user.name = "Ann"
    user.save()
    people.ask_for_address(user=user, email="ANN@example.com")
    assert Client().post(path).status_code == 302


def test_link_lasts_while_the_secret_is_replaced(user, settings):
    path = path_of(links.mint_link(user=user))
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "another" * 8
    assert Client().post(path).status_code == 302


def test_link_keeps_no_token(user):
    token = links.mint_link(user=user).rstrip("/").rpartition("/")[2]
    link = SignInLink.objects.get()
    assert token not in str(vars(link))
    assert link.expires_at - timezone.now() <= timedelta(minutes=15)


def test_link_used_meanwhile_is_refused(user, monkeypatch):
    """Two calls find the link; only the first to write signs in."""
    token = links.mint_link(user=user).rstrip("/").rpartition("/")[2]
    seen = links.find_link(token=token)
    links.use_link(token=token)
    monkeypatch.setattr(links, "find_link", lambda **_: seen)
    with pytest.raises(links.ServiceError):
        links.use_link(token=token)


def test_link_still_asks_for_the_second_factor(user):
    TOTP.activate(user, generate_totp_secret())
    client = Client()
    response = client.post(path_of(links.mint_link(user=user)))
    assert "2fa/authenticate" in response.headers["location"]
    assert not signed_in(client)


def test_password_signs_in_by_address_in_any_case(user):
    client = Client()
    form = {"login": "ANN@example.com", "password": "a long password"}
    assert client.post("/accounts/login/", form).status_code == 302
    assert signed_in(client)
    assert client.post("/accounts/logout/").status_code == 302
    assert not signed_in(client)


def test_wrong_password_says_so(user):
    page = Client().post("/accounts/login/", {"login": user.email, "password": "wrong"})
    assert page.status_code == 200
    assert "errorlist" in page.content.decode()


def test_reset_goes_out_by_mail(user):
    Client().post("/accounts/password/reset/", {"email": user.email})
    assert sent_mail()[0].to == [user.email]
    assert "/accounts/password/reset/key/" in sent_mail()[0].body


def test_no_stranger_gets_a_mail_of_a_reset_and_the_page_is_the_same(user):
    addresses = (user.email, "ann@elsewhere.com")
    pages = [Client().post("/accounts/password/reset/", {"email": address}) for address in addresses]
    assert [letter.to for letter in sent_mail()] == [[user.email]]
    assert len({(page.status_code, page.headers["location"]) for page in pages}) == 1


def test_sign_up_is_closed(db):
    page = Client().get("/accounts/signup/")
    assert "closed" in page.content.decode().lower()
    form = {"email": "x@example.com", "password1": "a long password", "password2": "a long password"}
    Client().post("/accounts/signup/", form)
    assert not User.objects.filter(email="x@example.com").exists()


@pytest.mark.parametrize("plan", ["nothing", "free"], ids=["unknown", "not offered"])
def test_sign_up_is_closed_while_its_plan_is_not_offered(terms, settings, plan):
    """A wrong name, or a plan that was withdrawn: a closed door, not an error of ours for everybody who comes."""
    settings.SLUICE_SIGNUP_PLAN = plan
    Plan.objects.filter(slug="free").update(is_offered=False)
    form = {"email": "x@example.com", "password1": "kvb3!xq9-plum", "password2": "kvb3!xq9-plum"}
    page = Client().post("/accounts/signup/", form)
    assert "closed" in page.content.decode().lower()
    assert not User.objects.filter(email="x@example.com").exists()


def test_open_sign_up_gives_a_tenant_on_the_plan_once_the_address_is_proved(terms, settings):
    """Whoever typed addresses of others had a tenant with credit for each."""
    settings.SLUICE_SIGNUP_PLAN = "free"
    form = {"email": "New.Person@example.com", "password1": "kvb3!xq9-plum", "password2": "kvb3!xq9-plum"}
    response = Client().post("/accounts/signup/", form)
    assert response.status_code == 302, re.findall(r"errorlist.*", response.content.decode())
    user = User.objects.get(email="new.person@example.com")
    assert not EmailAddress.objects.get(user=user).verified
    assert not Membership.objects.unscoped().filter(user=user).exists()
    assert not CreditGrant.objects.exists()
    [path] = re.findall(r"/accounts/confirm-email/[^/\s]+/", sent_mail()[-1].body)
    for _ in range(2):
        Client().post(path)
    membership = Membership.objects.unscoped().get(user=user)
    assert membership.role == "owner"
    assert membership.tenant.subscriptions.get().version.plan.slug == "free"
    assert EmailAddress.objects.get(user=user).verified
    email_confirmed.send(EmailAddress, request=None, email_address=EmailAddress.objects.get(user=user))
    assert Membership.objects.unscoped().filter(user=user).count() == 1  # another address is no other tenant


# -- invitations


def test_invitation_joins_once(acme):
    _, address = members.invite_member(tenant=acme.tenant, email="new@x.example", role="member")
    client = Client()
    assert acme.tenant.name in client.get(path_of(address)).content.decode()
    assert not User.objects.filter(email="new@x.example").exists()
    for wrong in ({}, {"new_password1": "short", "new_password2": "short"}, {**CHOSEN, "new_password2": "another"}):
        page = client.post(path_of(address), wrong)
        assert page.status_code == 400
        assert "errorlist" in page.content.decode()
    assert not User.objects.filter(email="new@x.example").exists()
    assert client.post(path_of(address), CHOSEN).status_code == 302
    assert signed_in(client)
    assert Membership.objects.of(acme.tenant).get(user__email="new@x.example").role == "member"
    assert Client().post(path_of(address)).status_code == 410
    client.post("/accounts/logout/")
    client.post("/accounts/login/", {"login": "new@x.example", "password": CHOSEN["new_password1"]})
    assert signed_in(client)


def test_invitation_is_for_its_address(acme, other):
    _, address = members.invite_member(tenant=acme.tenant, email="new@x.example")
    assert other.client().post(path_of(address)).status_code == 410
    assert Membership.objects.of(acme.tenant).count() == 1


@pytest.mark.parametrize("method", ["get", "post"])
def test_invitation_signs_nobody_in_who_exists_already(acme, user, method):
    """Whoever invites could have the link: it must not open what the invited person has elsewhere."""
    _, address = members.invite_member(tenant=acme.tenant, email=user.email)
    client = Client()
    answer = getattr(client, method)(path_of(address))
    assert answer.headers["location"] == f"/accounts/login/?next={path_of(address)}"
    assert not signed_in(client)
    assert not Membership.objects.of(acme.tenant).filter(user=user).exists()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert client.post(path_of(address)).status_code == 302
    assert Membership.objects.of(acme.tenant).filter(user=user, is_active=True).exists()


def test_invitation_of_a_deactivated_tenant_is_refused(acme):
    _, address = members.invite_member(tenant=acme.tenant, email="new@x.example")
    Tenant.objects.filter(id=acme.tenant.id).update(is_active=False)
    assert Client().post(path_of(address)).status_code == 410


def test_unknown_page_is_404_with_our_page(db):
    page = Client().get("/nowhere/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert "no page at this address" in page.content.decode()


def test_the_owner_of_a_suspended_tenant_reads_so(acme, settings):
    settings.SLUICE_SUPPORT_CONTACT = "help@sluice.example"
    client = acme.client()
    Tenant.objects.filter(id=acme.tenant.id).update(is_active=False)
    page = client.get("/usage/")
    assert page.status_code == 403
    text = page.content.decode()
    assert "Acme is suspended" in text
    assert "help@sluice.example" in text
    assert "belong to no tenant" not in text
    assert client.get("/chat/account/").json()["error"]["code"] == "tenant_inactive"


def test_who_belongs_to_no_tenant_reads_so(user):
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert "You belong to no tenant yet" in client.get("/usage/").content.decode()
    assert client.get("/chat/account/").json()["error"]["code"] == "not_a_member"
