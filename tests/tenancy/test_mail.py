"""Mail is written with the change that it tells of and sent by a sweep: at least once, and once where nothing dies."""

from __future__ import annotations

import smtplib
from datetime import timedelta

import pytest
from django.core import mail as django_mail
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from tenancy.models import Invitation, OutgoingMail
from tenancy.services import mail, members, outbox
from tests.billing.conftest import MovedClock
from tests.gateway.post import sent_mail

pytestmark = [pytest.mark.money, pytest.mark.django_db]


@pytest.fixture
def clock(monkeypatch):
    return MovedClock(monkeypatch)


def queue(number=1):
    return mail.queue_mail(to=f"{number}@x.example", subject="Join", text=f"https://here/{number}")


def fail_with(monkeypatch, *errors):
    """Let the mail server answer with these errors in turn, then take everything."""
    waiting, send = list(errors), mail.send_mail

    def answer(*args):
        if waiting:
            raise waiting.pop(0)
        return send(*args)

    monkeypatch.setattr(mail, "send_mail", answer)
    return waiting


def test_what_is_queued_goes_out_once_and_its_text_is_removed():
    made = queue()
    assert "here" not in made.sealed_text
    [letter] = sent_mail()
    assert (letter.to, letter.subject, letter.body) == (["1@x.example"], "Join", "https://here/1")
    assert len(sent_mail()) == 1
    made.refresh_from_db()
    assert (made.state, made.attempts, made.sealed_text, made.ended_at is None) == ("sent", 1, "", False)


def test_line_breaks_in_a_name_keep_no_mail_from_being_sent():
    mail.queue_mail(to="a@x.example", subject="Join Acme\r\nand\u2028 Sons", text="t")
    assert [letter.subject for letter in sent_mail()] == ["Join Acme and Sons"]


def test_a_change_that_is_rolled_back_sends_nothing(acme):
    with pytest.raises(RuntimeError), transaction.atomic():
        members.invite_by_mail(tenant=acme.tenant, email="new@x.example")
        raise RuntimeError
    assert sent_mail() == []


def test_an_invitation_and_its_mail_are_written_together(acme, monkeypatch):
    def fail(**_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(members, "queue_mail", fail)
    with pytest.raises(RuntimeError):
        members.invite_by_mail(tenant=acme.tenant, email="new@x.example")
    assert not Invitation.objects.of(acme.tenant).filter(email="new@x.example").exists()


@pytest.mark.parametrize("other", ["has sent it", "is sending it"])
def test_of_two_sweeps_that_found_the_same_mail_one_sends_it(monkeypatch, other):
    queue()
    take, send = outbox._take, mail._send

    def after_the_other(found, now):
        monkeypatch.setattr(outbox, "_take", take)
        with monkeypatch.context() as there:
            if other == "is sending it":
                there.setattr(mail, "_send", lambda _: None)
            assert mail.send_due_mail()
        return take(found, now)

    monkeypatch.setattr(outbox, "_take", after_the_other)
    mail.send_due_mail()
    assert mail._send is send
    assert len(django_mail.outbox) == (1 if other == "has sent it" else 0)


def test_a_server_that_fails_is_tried_again_later_and_not_before(monkeypatch, clock):
    first, second = queue(1), queue(2)
    fail_with(monkeypatch, smtplib.SMTPServerDisconnected("gone"))
    assert [letter.to for letter in sent_mail()] == [["2@x.example"]]
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, first.error, first.attempts, second.state) == ("waiting", "gone", 1, "sent")
    assert len(sent_mail()) == 1
    clock.set(timezone.now() + outbox.BACK_OFF[0] + timedelta(seconds=1))
    assert [letter.to for letter in sent_mail()] == [["2@x.example"], ["1@x.example"]]


def test_it_is_given_up_in_the_end(monkeypatch, clock):
    made, now = queue(), timezone.now()
    sealed = made.sealed_text
    attempts = len(outbox.BACK_OFF) + 1
    left = fail_with(monkeypatch, *[OSError("no route")] * (attempts + 5))
    for _ in range(attempts + 3):
        clock.set(now)
        sent_mail()
        now += timedelta(hours=9)
    assert len(left) == 5
    made.refresh_from_db()
    assert (made.state, made.error, made.attempts, made.sealed_text) == ("failed", "no route", attempts, sealed)


def test_an_address_that_the_server_refuses_is_given_up_at_once(monkeypatch):
    made = queue()
    refused = {made.to: (550, b"no such user")}
    fail_with(monkeypatch, smtplib.SMTPRecipientsRefused(refused))
    assert sent_mail() == []
    made.refresh_from_db()
    assert made.state == "failed"
    assert "no such user" in made.error


def test_an_address_that_is_refused_for_now_is_tried_again(monkeypatch):
    made = queue()
    fail_with(monkeypatch, smtplib.SMTPRecipientsRefused({made.to: (451, b"later")}))
    sent_mail()
    made.refresh_from_db()
    assert made.state == "waiting"


class KilledError(BaseException):
    """The process dies."""


@pytest.mark.parametrize("attempt", [1, len(outbox.BACK_OFF) + 1])
def test_what_a_killed_process_had_taken_is_sent_later_or_given_up(monkeypatch, clock, attempt):
    made = queue()
    OutgoingMail.objects.update(attempts=attempt - 1)
    fail_with(monkeypatch, KilledError())
    with pytest.raises(KilledError):
        mail.send_due_mail()
    assert sent_mail() == []
    clock.set(timezone.now() + timedelta(hours=9))
    is_last = attempt > len(outbox.BACK_OFF)
    assert len(sent_mail()) == (0 if is_last else 1)
    made.refresh_from_db()
    assert made.state == ("failed" if is_last else "sent")


def test_mail_outlives_a_replaced_secret(settings):
    queue()
    before, settings.SLUICE_CREDENTIAL_SECRET = settings.SLUICE_CREDENTIAL_SECRET, "another"
    settings.SLUICE_CREDENTIAL_FALLBACKS = [before]
    assert len(sent_mail()) == 1


def test_mail_whose_secret_is_lost_is_kept_says_why_and_is_sent_once_it_is_found(settings):
    made = queue()
    before, settings.SLUICE_CREDENTIAL_SECRET = settings.SLUICE_CREDENTIAL_SECRET, "another"
    fallbacks, settings.SLUICE_CREDENTIAL_FALLBACKS = settings.SLUICE_CREDENTIAL_FALLBACKS, []
    assert sent_mail() == []
    sealed = made.sealed_text
    made.refresh_from_db()
    assert "under another secret" in made.error
    assert (made.state, made.sealed_text, made.ended_at is None) == ("failed", sealed, False)
    assert mail.send_unread_mail() == 0
    settings.SLUICE_CREDENTIAL_FALLBACKS = [before, *fallbacks]
    call_command("setup", verbosity=0)
    [letter] = sent_mail()
    assert letter.body == "https://here/1"
    assert mail.send_unread_mail() == 0
    made.refresh_from_db()
    assert (made.state, made.error, made.sealed_text) == ("sent", "", "")
