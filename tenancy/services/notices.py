"""Mail that tells a person of a change to their account: of what the audit trail records, whoever did it.

A notice is queued in the transaction of the change, and no fault of its own undoes that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_save
from django.utils import timezone

from tenancy.models import AdminAPIKey, APIKey, AuditEvent, Membership, User
from tenancy.services.mail import Subject, queue_notice

_FACTORS = {"totp": "An authenticator app", "webauthn": "A passkey", "recovery_codes": "A set of recovery codes"}
_KEYS: dict[str, type[APIKey | AdminAPIKey]] = {"key": APIKey, "admin_key": AdminAPIKey}

log = structlog.get_logger(__name__)


class Notice(NamedTuple):
    """A mail to `to` about the account of `user`: a subject, and what is new as a sentence."""

    user: User
    subject: str
    sentence: str
    to: str


def connect() -> None:
    """Connect the signal's receiver; call once per process."""
    post_save.connect(_tell, sender=AuditEvent, dispatch_uid="services.notices")


def _tell(instance: AuditEvent, **_: object) -> None:
    try:
        with transaction.atomic():
            for notice in _notices(instance):
                text = f"{notice.sentence}\n\n{_who(instance, notice.user)}\n\n{_remedy(notice)}\n"
                queue_notice(to=notice.to, subject=notice.subject, text=text)
    except Exception:
        log.exception("notice_not_queued", action=instance.action, target=instance.target_id)


def _notices(event: AuditEvent) -> Iterator[Notice]:
    word, _, verb = event.action.partition(".")
    if event.action == "user.changed":
        yield from _of_user(event)
    elif event.action == "membership.changed":
        yield from _of_membership(event)
    elif word == "second_factor" and verb in {"created", "deleted"}:
        values = event.before | event.after  # the reason for a removal stands in `after`
        what, done = _FACTORS.get(values["type"], "A second factor"), "added" if verb == "created" else "removed"
        user = User.objects.get(pk=values["user"])
        yield Notice(user, f"{what} was {done}", f"{what} was {done}.", user.email)
    elif word in _KEYS and (done := _done_to_key(event, verb)):
        yield from _of_key(event, word, done)


def _of_user(event: AuditEvent) -> Iterator[Notice]:
    user = User.objects.get(pk=event.target_id)
    if "password" in event.after:
        yield Notice(user, "Your password was changed", "Your account has another password.", user.email)
    if "email" in event.after:
        sentence = "Your account has another address now: this one signs in no more."
        yield Notice(user, "Your address was changed", sentence, event.before["email"])
    if "is_active" in event.after:
        state = "activated" if user.is_active else "deactivated"
        yield Notice(user, f"Your account was {state}", f"Your account was {state}.", user.email)


def _of_membership(event: AuditEvent) -> Iterator[Notice]:
    row = Membership.objects.unscoped().select_related("user", "tenant").get(pk=event.target_id)
    tenant, user = row.tenant.name, row.user
    if "role" in event.after:
        sentence = f"Your role in {tenant} is {row.role} now; it was {event.before['role']}."
        yield Notice(user, Subject.ROLE.format(tenant), sentence, user.email)
    if event.after.get("is_active") is False:
        sentence = f"You are no member of {tenant} any more. API keys that you made there are revoked."
        yield Notice(user, Subject.REMOVED.format(tenant), sentence, user.email)


def _done_to_key(event: AuditEvent, verb: str) -> str:
    if verb == "changed":
        return "given a new secret" if "last_four" in event.after else ""
    return {"created": "made", "revoked": "revoked"}.get(verb, "")


def _of_key(event: AuditEvent, word: str, done: str) -> Iterator[Notice]:
    """Tell the member who made the key, if they ever signed in; nobody whom the tenant has removed with all keys."""
    key = _KEYS[word].objects.unscoped().select_related("created_by", "tenant").get(pk=event.target_id)
    user = key.created_by
    if user is None or user.last_login is None:
        return
    if Membership.objects.of(key.tenant).filter(user=user, is_active=True).exists():
        sentence = f"The {_named(key)} of {key.tenant.name}, made in your name, was {done}."
        yield Notice(user, f"{'Admin' if word == 'admin_key' else 'API'} key was {done}", sentence, user.email)


def _named(key: APIKey | AdminAPIKey) -> str:
    """Return a key's name and last characters: of the rest of its secret a mail tells nothing."""
    return f"{'API' if isinstance(key, APIKey) else 'admin'} key {key.name} (…{key.last_four})"


def _who(event: AuditEvent, user: User) -> str:
    """Return when and by whom: operators and commands aren't named, and of others no address of the network is told."""
    place = f" from the address {event.address}" if event.address else ""
    if event.user_id == user.pk:
        who = f"by you{place}"
    elif event.actor == "anonymous":
        who = f"with a link of a mail{place}"
    elif event.api_key is not None:
        who = f"by the {_named(event.api_key)}"
    elif event.user.is_staff if event.user else not event.actor.startswith("admin key "):
        who = "by an operator"
    else:
        who = f"by {event.actor}"
    return f"It was done {who}, at {timezone.now():%Y-%m-%d %H:%M} UTC."


def _remedy(notice: Notice) -> str:
    """Return what the reader can do: choose a new password only where a mail to this address still does that."""
    contact = settings.SLUICE_SUPPORT_CONTACT
    ask = f"write to {contact}" if contact else "tell your operator"
    if notice.user.is_active and notice.to == notice.user.email:
        ask = f"choose a new password at {settings.SLUICE_BASE_URL.rstrip('/')}/accounts/password/reset/, and {ask}"
    return f"If you don't expect this, {ask}."
