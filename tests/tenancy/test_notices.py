"""Mail to people whose account was changed: what each change tells, to whom, and that it undoes no change."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.hashers import make_password
from django.test import Client, RequestFactory
from django.utils import timezone

from tenancy.audit import origin
from tenancy.models import APIKey, AuditEvent, Membership, OutgoingMail, User
from tenancy.services import admin_keys, keys, members, notices
from tenancy.services.mail import queue_mail
from tenancy.services.scopes import ALL
from tests.gateway.post import move, sent_mail
from tests.parties import PASSWORD

pytestmark = pytest.mark.django_db
NEW = "wq8?pear-tango"


@pytest.fixture
def ann(acme):
    """A member of acme with a key, before whose mail is empty."""
    user = User.objects.create_user("ann@example.com", PASSWORD, last_login=timezone.now())
    Membership(tenant=acme.tenant, user=user, role="member").save(force_insert=True)
    keys.create_key(tenant=acme.tenant, project=acme.project, name="hers", created_by=user)
    sent_mail().clear()
    return user


def membership(acme, user):
    return Membership.objects.of(acme.tenant).get(user=user)


def set_password(_, user):
    user.set_password(NEW)
    user.save()


def deactivate(_, user):
    user.is_active = False
    user.save(update_fields=["is_active"])


def key_of(acme, user):
    return APIKey.objects.of(acme.tenant).get(created_by=user)


def make_admin_key(acme, user):
    Membership.objects.of(acme.tenant).filter(user=user).update(role="owner")
    admin_keys.create_admin_key(tenant=acme.tenant, name="all", created_by=user)


def remove_factor(_, user):
    Authenticator.objects.create(user=user, type="totp", data={"secret": "JBSWY3DPEHPK3PXP"})
    sent_mail().clear()
    Authenticator.objects.get(user=user).delete()


CHANGES = {
    "password": (set_password, "Your password was changed", "another password"),
    "deactivated": (deactivate, "Your account was deactivated", "deactivated"),
    "factor on": (
        lambda _, user: TOTP.activate(user, generate_totp_secret()),
        "An authenticator app was added",
        "An authenticator app was added.",
    ),
    "factor off": (remove_factor, "An authenticator app was removed", "An authenticator app was removed."),
    "role": (
        lambda acme, user: members.change_role(tenant=acme.tenant, membership=membership(acme, user), role="billing"),
        "Your role in Acme was changed",
        "Your role in Acme is billing now; it was member.",
    ),
    "removed": (
        lambda acme, user: members.remove_member(tenant=acme.tenant, membership=membership(acme, user)),
        "You were removed from Acme",
        "no member of Acme any more. API keys that you made there are revoked.",
    ),
    "key made": (
        lambda acme, user: keys.create_key(tenant=acme.tenant, project=acme.project, name="new", created_by=user),
        "API key was made",
        "The API key new (…",
    ),
    "key rotated": (
        lambda acme, user: keys.rotate_key(tenant=acme.tenant, key=key_of(acme, user)),
        "API key was given a new secret",
        "The API key hers (…",
    ),
    "key revoked": (
        lambda acme, user: keys.revoke_key(tenant=acme.tenant, key=key_of(acme, user)),
        "API key was revoked",
        "of Acme, made in your name, was revoked.",
    ),
    "admin key made": (make_admin_key, "Admin key was made", "The admin key all (…"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_told_to_the_person_once(acme, ann, change):
    do, subject, sentence = CHANGES[change]
    do(acme, ann)
    [letter] = sent_mail()
    assert (letter.to, letter.subject) == (["ann@example.com"], subject)
    assert sentence in letter.body
    assert "by an operator" in letter.body
    assert ("/accounts/password/reset/" in letter.body) is (change != "deactivated")


def test_of_another_address_the_old_one_is_told_but_not_which(acme, ann, settings):
    settings.SLUICE_SUPPORT_CONTACT = "help@sluice.example"
    move(ann, "new@example.com")
    asked, told = sent_mail()
    assert asked.to == ["new@example.com"]
    assert (told.to, told.subject) == (["ann@example.com"], "Your address was changed")
    assert "new@example.com" not in told.body
    assert "/accounts/password/reset/" not in told.body
    assert "If you don't expect this, write to help@sluice.example." in told.body


def test_what_a_person_does_is_told_as_theirs_without_a_secret(acme, ann):
    client = Client()
    client.force_login(ann, backend="django.contrib.auth.backends.ModelBackend")
    form = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    assert client.post("/accounts/password/change/", form).status_code == 302
    form = {"name": "mine", "access": ALL, "project": str(acme.project.id)}
    page = client.post("/keys/new/", form, follow=True)
    secret = page.context["secret"]
    letters = sent_mail()
    assert [letter.subject for letter in letters] == ["Your password was changed", "API key was made"]
    for letter in letters:
        assert "by you from the address 127.0.0.1" in letter.body
        assert NEW not in letter.body
        assert secret not in letter.body


def test_a_member_is_told_which_owner_did_it(acme, ann):
    row = membership(acme, ann)
    path = f"/api/v1/members/{row.id}/"
    form = {"content_type": "application/json", "REMOTE_ADDR": "192.0.2.9"}
    assert acme.client().patch(path, {"role": "billing"}, **form).status_code == 200
    [letter] = sent_mail()
    assert f"by {acme.owner.email}," in letter.body
    assert "192.0.2.9" not in letter.body


def test_a_key_that_did_it_is_told_by_name_and_last_characters(acme, ann):
    made, _ = keys.create_key(tenant=acme.tenant, project=acme.project, name="ops", scopes=["management"])
    key = key_of(acme, ann)
    with origin.asked_by(RequestFactory().post("/"), uuid4()):
        origin.current().key = made
        keys.revoke_key(tenant=acme.tenant, key=key)
    [letter] = sent_mail()
    assert f"by the API key ops (…{made.last_four})," in letter.body
    for shown in (key.prefix, made.prefix):
        assert shown not in letter.body


def test_a_password_that_is_only_stored_anew_is_no_change(ann, settings):
    settings.PASSWORD_HASHERS = [*settings.PASSWORD_HASHERS, "django.contrib.auth.hashers.PBKDF2SHA1PasswordHasher"]
    User.objects.filter(pk=ann.pk).update(password=make_password(PASSWORD, hasher="pbkdf2_sha1"))
    events = AuditEvent.objects.unscoped().filter(action="user.changed").count()
    assert User.objects.get(pk=ann.pk).check_password(PASSWORD)
    assert not User.objects.get(pk=ann.pk).password.startswith("pbkdf2_sha1$")
    assert sent_mail() == []
    assert AuditEvent.objects.unscoped().filter(action="user.changed").count() == events


def test_many_changes_are_told_once_and_after_other_mail(acme, ann):
    for role in ("billing", "member", "billing"):
        members.change_role(tenant=acme.tenant, membership=membership(acme, ann), role=role)
    queue_mail(to="a@x.example", subject="Join", text="t")
    OutgoingMail.objects.update(next_attempt_at=timezone.now() - timedelta(minutes=1))  # all are due
    letters = sent_mail()
    assert [letter.subject for letter in letters] == ["Join", "Your role in Acme was changed"]
    members.change_role(tenant=acme.tenant, membership=membership(acme, ann), role="member")
    assert OutgoingMail.objects.filter(state="waiting").count() == 1


def test_a_notice_that_cannot_be_queued_undoes_no_change(acme, ann, monkeypatch):
    def fail(**_):
        raise OSError("no room")

    monkeypatch.setattr(notices, "queue_notice", fail)
    members.change_role(tenant=acme.tenant, membership=membership(acme, ann), role="billing")
    assert membership(acme, ann).role == "billing"
    assert sent_mail() == []
