"""A person sees where they are signed in, and ends it; second factors on the same page."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from control.accounts.sessions import browser_of
from gateway.http.callers import _user_of
from operation.jobs.purge import purge
from tenancy.models import AuditEvent
from tests.parties import PASSWORD

pytestmark = pytest.mark.django_db
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1 Version/18.0 Mobile/15E Safari/604.1"


def signed_in(user, agent=FIREFOX, address="192.0.2.1"):
    client = Client(headers={"user-agent": agent}, REMOTE_ADDR=address)
    assert client.post("/accounts/login/", {"login": user.email, "password": PASSWORD}).status_code == 302
    return client


def is_signed_in(client):
    return client.get("/accounts/").status_code == 200


def test_sessions_are_listed_and_one_is_ended(acme):
    here, phone = signed_in(acme.owner), signed_in(acme.owner, PHONE, "2001:db8::7")
    text = here.get("/accounts/").content.decode()
    assert text.index("Firefox on Linux") < text.index("this one") < text.index("Safari on iPhone")
    assert "2001:db8::7" in text
    key = phone.session.session_key
    assert _user_of(key) == acme.owner.pk
    one = UserSession.objects.get(session_key=key)
    assert here.post(reverse("account_end_session", args=[one.pk])).url == "/accounts/#sessions"
    assert not is_signed_in(phone)
    assert _user_of(key) is None  # nor by the chat's socket
    assert is_signed_in(here)
    assert "Safari on iPhone" not in here.get("/accounts/").content.decode().partition('id="sessions"')[2]
    [event] = AuditEvent.objects.unscoped().filter(action="user.signed_out")
    assert (event.actor, event.after) == (acme.owner.email, {"sessions": 1})


def test_all_others_are_ended_and_this_one_stays(acme, other):
    here, *others = (signed_in(acme.owner) for _ in range(3))
    stranger = signed_in(other.owner)
    here.post(reverse("account_end_others"))
    assert is_signed_in(here)
    assert not any(is_signed_in(one) for one in others)
    assert is_signed_in(stranger)
    here.post(reverse("account_end_session", args=[UserSession.objects.get(user=acme.owner).pk]))
    assert not is_signed_in(here)


def test_nobody_ends_the_sessions_of_another(acme, other):
    mine, theirs = signed_in(acme.owner), signed_in(other.owner)
    one = UserSession.objects.get(user=other.owner)
    assert mine.post(reverse("account_end_session", args=[one.pk])).status_code == 404
    assert mine.get(reverse("account_end_others")).status_code == 405
    assert is_signed_in(theirs)


def test_a_session_in_use_is_noted_once_in_a_while(acme):
    client = signed_in(acme.owner)
    UserSession.objects.update(last_seen_at=timezone.now() - timedelta(hours=1))
    client.get("/accounts/")
    assert UserSession.objects.get().last_seen_at < timezone.now() - timedelta(minutes=59)
    cache.clear()
    client.get("/accounts/", headers={"user-agent": PHONE})
    seen = UserSession.objects.get()
    assert seen.last_seen_at > timezone.now() - timedelta(minutes=5)
    assert seen.user_agent == PHONE


def test_what_is_noted_of_a_session_goes_once_it_is_over(acme, settings):
    signed_in(acme.owner)
    purge(timezone.now())
    assert UserSession.objects.count() == 1
    purge(timezone.now() + timedelta(seconds=settings.SESSION_COOKIE_AGE + 60))
    assert not UserSession.objects.exists()


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 15) Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("", "A program"),
    ],
)
def test_browsers_are_told_in_words(agent, told):
    assert browser_of(agent) == told


def test_second_factors_stand_on_the_account_page(acme):
    client = signed_in(acme.owner)
    text = client.get("/accounts/").content.decode()
    assert reverse("mfa_activate_totp") in text
    assert reverse("mfa_add_webauthn") in text
    assert "Recovery codes" not in text
    TOTP.activate(acme.owner, generate_totp_secret())
    RecoveryCodes.activate(acme.owner)
    text = client.get("/accounts/").content.decode()
    assert reverse("mfa_deactivate_totp") in text
    assert re.search(r"Recovery codes</dt><dd>10 left", text)
    for name in ("mfa_index", "mfa_list_webauthn"):
        assert client.get(reverse(name)).url == "/accounts/#factors"
