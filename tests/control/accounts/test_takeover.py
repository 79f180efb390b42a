"""How somebody could come into another tenant by claiming an address, link by link: each must break the chain."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.test import Client

from base.errors import ServiceError
from tenancy.models import Membership, User
from tenancy.services import members, people
from tests.gateway.post import link_in, move, sent_mail

pytestmark = pytest.mark.django_db

VICTIM = "victim@corp.example"
CHOSEN = {"new_password1": "kvb3!xq9-plum", "new_password2": "kvb3!xq9-plum"}
BACKEND = "django.contrib.auth.backends.ModelBackend"


def reset_link():
    return urlsplit(re.search(r"http\S+/password/reset/key/\S+/", sent_mail()[-1].body).group()).path


def set_password(client, link, password):
    form = client.get(link).headers["location"]
    return client.post(form, {"password1": password, "password2": password})


@pytest.fixture
def attacker(acme):
    """A member of another tenant with an address and a password of their own."""
    user = User.objects.create_user("mallory@evil.example", "a long password")
    Membership(tenant=acme.tenant, user=user, role="member").save(force_insert=True)
    return user


def test_the_chain_from_a_claimed_address_to_anothers_tenant(attacker, other):
    """Claim the victim's address, let another tenant invite it, take the account back by the old address."""
    thief = Client()
    thief.force_login(attacker, backend=BACKEND)
    for action in ("add", "primary"):
        thief.post("/accounts/email/", {f"action_{action}": "", "email": VICTIM})
    attacker.refresh_from_db()
    assert attacker.email == "mallory@evil.example"

    _, address = members.invite_member(tenant=other.tenant, email=VICTIM, role="admin")
    victim = Client()
    invitation = urlsplit(address).path
    page = victim.post(invitation, CHOSEN)
    if "/accounts/login/" in page.headers["location"]:  # the account is the attacker's: the victim resets its password
        victim.post("/accounts/password/reset/", {"email": VICTIM})
        set_password(victim, reset_link(), "kvb3!xq9-plum")
        victim.post("/accounts/login/", {"login": VICTIM, "password": "kvb3!xq9-plum"})
        victim.post(invitation)
    joined = Membership.objects.of(other.tenant).get(role="admin").user
    assert joined.email == VICTIM

    sent_mail().clear()
    thief = Client()
    thief.post("/accounts/password/reset/", {"email": "mallory@evil.example"})
    if sent_mail() and "/password/reset/key/" in sent_mail()[-1].body:
        set_password(thief, reset_link(), "mine, a long one")
    thief.post("/accounts/login/", {"login": "mallory@evil.example", "password": "mine, a long one"})
    signed_in = thief.session.get("_auth_user_id")
    assert signed_in != str(joined.pk), "the attacker is signed in as the victim"
    assert joined.check_password("kvb3!xq9-plum")
    assert list(EmailAddress.objects.filter(user=joined).values_list("email", "verified", "primary")) == [
        (VICTIM, True, True)
    ]


def test_there_is_no_page_of_addresses(acme):
    client = acme.client()
    for method in ("get", "post"):
        assert getattr(client, method)("/accounts/email/").status_code == 404
    for path in ("3rdparty/", "login/code/", "login/code/confirm/", "social/signup/", "signup/passkey/"):
        assert client.get(f"/accounts/{path}").status_code == 404, path


@pytest.mark.parametrize("plan", ["", "free"], ids=["closed", "open"])
def test_an_unproved_account_never_signs_in(terms, settings, plan):
    """An account made while sign-up was open, with somebody else's address, is none after it was closed either."""
    settings.SLUICE_SIGNUP_PLAN = "free"
    form = {"email": VICTIM, "password1": "kvb3!xq9-plum", "password2": "kvb3!xq9-plum"}
    Client().post("/accounts/signup/", form)
    settings.SLUICE_SIGNUP_PLAN = plan
    thief = Client()
    thief.post("/accounts/login/", {"login": VICTIM, "password": "kvb3!xq9-plum"})
    assert User.objects.filter(email=VICTIM).exists()
    assert "_auth_user_id" not in thief.session


def test_an_address_in_use_is_one_clear_error(attacker, other):
    root = Client()
    root.force_login(User.objects.create_superuser("root@example.com"), backend=BACKEND)
    form = {"email": other.owner.email.upper(), "name": "", "is_active": "on"}
    page = root.post(f"/admin/gateway/user/{attacker.pk}/change/", form)
    assert page.status_code == 200
    assert "already exists" in page.content.decode()
    with pytest.raises(ServiceError, match="Another user has this address") as caught:
        people.ask_for_address(user=attacker, email=other.owner.email.upper())
    assert caught.value.field == "email"
    attacker.refresh_from_db()
    assert attacker.email == "mallory@evil.example"
    assert EmailAddress.objects.get(user=attacker).email == attacker.email
    assert EmailAddress.objects.get(email=other.owner.email).user == other.owner


@pytest.fixture
def root(db):
    """A superuser's browser."""
    client = Client()
    client.force_login(User.objects.create_superuser("root@example.com"), backend=BACKEND)
    return client


def ask_for(client, user, email, shown=""):
    form = {"email": email, "initial-email": shown, "name": "", "is_active": "on"}
    assert client.post(f"/admin/gateway/user/{user.pk}/change/", form).status_code == 302


def test_another_address_counts_once_it_is_proved_and_the_old_one_is_told(attacker, root):
    EmailAddress.objects.create(user=attacker, email="second@evil.example")
    ask_for(root, attacker, "New@evil.example")
    attacker.refresh_from_db()
    assert attacker.email == "mallory@evil.example"
    [letter] = sent_mail()
    assert letter.to == ["new@evil.example"]
    path = link_in(letter, "addresses")
    assert "Make new@evil.example your address" in Client().get(path).content.decode()
    attacker.refresh_from_db()
    assert attacker.email == "mallory@evil.example", "an opened link does nothing by itself"
    assert Client().post(path).status_code == 200
    attacker.refresh_from_db()
    assert attacker.email == "new@evil.example"
    assert [row.email for row in EmailAddress.objects.filter(user=attacker)] == ["new@evil.example"]
    told = sent_mail()[-1]
    assert (told.to, told.subject) == (["mallory@evil.example"], "Your address was changed")
    assert Client().post(path).status_code == 410
    for old in ("mallory@evil.example", "second@evil.example"):
        sent_mail().clear()
        Client().post("/accounts/password/reset/", {"email": old})
        assert all("/password/reset/key/" not in letter.body for letter in sent_mail())


def test_a_page_from_before_a_change_of_address_asks_for_no_change_back(attacker, root):
    page = root.get(f"/admin/gateway/user/{attacker.pk}/change/").content.decode()
    assert re.search(r'name="initial-email" value="mallory@evil.example"', page)
    move(attacker, "new@evil.example")
    sent_mail().clear()
    ask_for(root, attacker, "mallory@evil.example", shown="mallory@evil.example")
    assert sent_mail() == []
    attacker.refresh_from_db()
    assert attacker.email == "new@evil.example"


def test_a_change_of_address_is_taken_back_by_saving_the_present_one(attacker, root):
    ask_for(root, attacker, "new@evil.example", shown=attacker.email)
    [letter] = sent_mail()
    ask_for(root, attacker, attacker.email, shown=attacker.email)
    assert Client().post(link_in(letter, "addresses")).status_code == 410
    assert len(sent_mail()) == 1


HOSTS = ["localhost:9", "127.0.0.1:8443", "localhost"]


@pytest.mark.parametrize("host", HOSTS)
def test_whoever_asks_for_a_mail_does_not_choose_where_its_links_lead(acme, settings, host):
    """The host of a request is the asker's to choose, its port at least: the link goes to somebody else."""
    settings.SLUICE_BASE_URL, settings.SLUICE_SIGNUP_PLAN = "https://sluice.example", "free"
    Client().post("/accounts/password/reset/", {"email": acme.owner.email}, headers={"host": host})
    form = {"password1": "kvb3!xq9-plum", "password2": "kvb3!xq9-plum"}
    for email in (VICTIM, acme.owner.email):
        Client().post("/accounts/signup/", {"email": email, **form}, headers={"host": host})
    assert len(sent_mail()) == 3
    for letter in sent_mail():
        addresses = re.findall(r"https?://[^/\s]+", letter.body)
        assert set(addresses) == {"https://sluice.example"}, letter.body
        assert host not in letter.body + letter.subject


def test_another_host_is_no_other_account_to_guess_at(acme):
    """Five wrong passwords lock the guesser out of an account, whatever host each was sent to."""
    pages = [
        Client()
        .post(
            "/accounts/login/",
            {"login": acme.owner.email, "password": "wrong"},
            headers={"host": f"localhost:{port}"},
        )
        .content.decode()
        for port in range(6)
    ]
    assert ["Too many failed login attempts" in page for page in pages] == [False] * 5 + [True]


SPOILS = {
    "another address": lambda user: move(user, "third@evil.example"),
    "a later ask": lambda user: people.ask_for_address(user=user, email="fourth@evil.example"),
    "taken back": lambda user: people.ask_for_address(user=user, email=user.email),
    "another password": lambda user: set_for(user, "another long password"),
    "another user has it": lambda _: User.objects.create_user("new@evil.example"),
    "deactivated": lambda user: User.objects.filter(pk=user.pk).update(is_active=False),
}


def set_for(user, password):
    user.set_password(password)
    user.save()


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_link_to_an_address_is_void_after_any_change(attacker, root, spoil):
    ask_for(root, attacker, "new@evil.example")
    path = link_in(sent_mail()[-1], "addresses")
    SPOILS[spoil](attacker)
    assert Client().post(path).status_code == 410
    assert not User.objects.filter(pk=attacker.pk, email="new@evil.example").exists()


def test_a_link_to_an_address_that_is_too_old_or_made_up_is_void(attacker, monkeypatch):
    people.ask_for_address(user=attacker, email="new@evil.example")
    path = link_in(sent_mail()[-1], "addresses")
    assert Client().post(path.replace(":", ".", 1)).status_code == 410
    monkeypatch.setattr(people, "LIFETIME", timedelta(seconds=-1))
    assert Client().post(path).status_code == 410
    attacker.refresh_from_db()
    assert attacker.email == "mallory@evil.example"


def test_an_operator_who_is_no_superuser_takes_nobodys_account_over(acme, attacker):
    """Not an owner's, who has no permission that an operator lacks, nor a member's."""
    call_command("setup", verbosity=0)
    staff = User.objects.create_user("staff@example.com", is_staff=True)
    staff.groups.set(Group.objects.filter(name="admin"))
    client = Client()
    client.force_login(staff, backend=BACKEND)
    passwords = {"password1": "kvb3!xq9-plum", "password2": "kvb3!xq9-plum", "usable_password": "true"}
    for user in (acme.owner, attacker):
        before = (user.email, user.password)
        page = f"/admin/gateway/user/{user.pk}"
        ask_for(client, user, "mine@evil.example")  # what else the form says is saved
        assert client.post(f"{page}/password/", passwords).status_code == 403
        assert "../password/" not in client.get(f"{page}/change/").content.decode()
        user.refresh_from_db()
        assert (user.email, user.password) == before
    assert sent_mail() == []
