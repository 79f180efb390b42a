"""Mail, by the outbox (`tenancy.services.outbox`)."""

from __future__ import annotations

import logging
from enum import StrEnum
from smtplib import SMTPRecipientsRefused
from uuid import UUID

from django.core.mail import send_mail
from django.db import transaction
from django.db.models import Q, QuerySet

from base import clock
from base.sealing import SealError, seal, unseal
from tenancy.audit.trail import record
from tenancy.models import OutgoingMail
from tenancy.services import outbox

logger = logging.getLogger("sluice.jobs")

_State = OutgoingMail.State
_UNREAD = "Its text was encrypted under another secret: make that a fallback, then run `manage.py setup`."


def queue_mail(*, to: str, subject: str, text: str) -> OutgoingMail:
    """Store a mail to be sent once the transaction is committed; nothing is sent where it is rolled back."""
    return _queued(to=to, subject=_line(subject), sealed_text=seal(text))


def queue_notice(*, to: str, subject: str, text: str) -> None:
    """Store a mail that is sent after all others, unless one of that subject waits for the same address already."""
    alike = {"to": to, "subject": _line(subject)}
    if not OutgoingMail.objects.filter(state=_State.WAITING, **alike).exists():
        _queued(**alike, sealed_text=seal(text), is_notice=True)


def _queued(**fields: object) -> OutgoingMail:
    """Store a mail that is due by the clock that sending reads: SQLite's default rounds up to the next millisecond."""
    return OutgoingMail.objects.create(**fields, next_attempt_at=clock.now())


def _line(subject: str) -> str:
    """Return a subject as it is sent: names in it may have line breaks, with which no mail can be."""
    return " ".join(subject.split())[:250]


class Subject(StrEnum):
    """The subjects that name a tenant."""

    JOIN = "Join {} on Sluice"
    ROLE = "Your role in {} was changed"
    REMOVED = "You were removed from {}"


class Beginning(StrEnum):
    """The beginnings of subjects that name a tenant and say more."""

    NEEDS = "Needs you: {}: "
    OVER = "Over: {}: "


def mails_about(tenant: str) -> QuerySet[OutgoingMail]:
    """Return the mails whose subject names the tenant of that name."""
    named = Q(subject__in=[_line(subject.format(tenant)) for subject in Subject])
    for beginning in Beginning:
        named |= Q(subject__startswith=_line(beginning.format(tenant)))
    return OutgoingMail.objects.filter(named)


def send_due_mail() -> bool:
    """Send the mail that is due for the longest, notices last; return whether there was one."""
    mail, is_ours = outbox.take_due(OutgoingMail, "is_notice")
    if mail is not None and is_ours:
        _send(mail)
    return mail is not None


def send_unread_mail() -> int:
    """Let mail whose text could not be read be sent after all where it can be by now; return how many that is."""
    return _try_again(OutgoingMail.objects.filter(error=_UNREAD))


@transaction.atomic
def send_failed_mail(pk: UUID | None = None) -> int:
    """Let the mail that was given up be tried again from the start, or that one; return how many will be.

    One whose text can't be read stays as it is.
    """
    failed = OutgoingMail.objects.all() if pk is None else OutgoingMail.objects.filter(pk=pk)
    for mail in (again := list(failed.filter(state=_State.FAILED))):
        if _try_again(OutgoingMail.objects.filter(pk=mail.pk)):
            record("mail.tried_again", mail)
        else:
            again.remove(mail)
    return len(again)


def _try_again(mails: QuerySet[OutgoingMail]) -> int:
    found = 0
    for mail in mails.filter(state=_State.FAILED).exclude(sealed_text=""):
        try:
            unseal(mail.sealed_text)
        except SealError:
            continue
        outbox.again(mail)
        found += 1
    return found


def _send(mail: OutgoingMail) -> None:
    try:
        text = unseal(mail.sealed_text)
    except SealError:
        # Once the secret is known again `send_unread_mail` gives it another chance.
        logger.warning("a mail could not be sent", extra={"mail": mail.pk, "error": _UNREAD, "given_up": True})
        outbox.end(mail, _State.FAILED, error=_UNREAD)
        return
    try:
        send_mail(mail.subject, text, None, [mail.to])
    except Exception as error:  # noqa: BLE001 - whatever a backend raises: kept with the mail, which is tried again
        is_last = outbox.is_last(mail) or _is_refused_for_good(error)
        reason = str(error)[:300] or type(error).__name__
        logger.warning("a mail could not be sent", extra={"mail": mail.pk, "error": reason, "given_up": is_last})
        if is_last:
            outbox.end(mail, _State.FAILED, error=reason)
        else:
            OutgoingMail.objects.filter(pk=mail.pk).update(error=reason)
        return
    outbox.end(mail, _State.SENT, error="", sealed_text="")


def _is_refused_for_good(error: Exception) -> bool:
    return isinstance(error, SMTPRecipientsRefused) and all(code >= 500 for code, _ in error.recipients.values())
