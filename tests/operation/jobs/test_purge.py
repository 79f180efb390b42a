"""What has ended is removed, in chunks, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.utils import timezone

from base.ids import uuid7
from billing.models import PaymentClaim, PaymentEvent, Purchase, Reconciliation
from gateway.apis.responses.models import StoredResponse
from gateway.batches.files import StoredFile, hide_expired
from gateway.batches.models import Batch
from gateway.batches.services import forget_batches
from gateway.conversations import Conversation
from gateway.runtime.models import RefusalCount, RefusedRequest
from operation.jobs import tasks
from operation.jobs.purge import purge
from tenancy.audit import LEAST_AUDIT_DAYS
from tenancy.models import AuditEvent, Invitation, OutgoingMail, SignInLink, Tenant
from tenancy.services import links, members, tenants

pytestmark = [pytest.mark.money, pytest.mark.django_db]


def left():
    return Session.objects.count(), SignInLink.objects.count(), Invitation.objects.unscoped().count()


@pytest.fixture
def rows(acme):
    now = timezone.now()
    for number in range(5):
        Session.objects.create(session_key=f"old{number}", expire_date=now - timedelta(seconds=1))
        links.mint_link(user=acme.owner)
        members.invite_member(tenant=acme.tenant, email=f"{number}@x.example")
    SignInLink.objects.update(expires_at=now - timedelta(seconds=1))
    Invitation.objects.unscoped().update(expires_at=now - timedelta(days=30, seconds=1))  # one was taken up
    Session.objects.create(session_key="new", expire_date=now + timedelta(days=1))
    links.mint_link(user=acme.owner)
    members.invite_member(tenant=acme.tenant, email="open@x.example")
    late, _ = members.invite_member(tenant=acme.tenant, email="late@x.example")
    Invitation.objects.unscoped().filter(pk=late.pk).update(expires_at=now - timedelta(days=30) + timedelta(seconds=1))
    return now


def test_it_goes_in_chunks_and_leaves_what_is_good(rows):
    assert left() == (6, 6, 8)
    assert purge(rows, limit=2) == 6
    assert left() == (4, 4, 6)
    assert [purge(rows, limit=2) for _ in range(3)] == [6, 3, 0]
    assert left() == (1, 1, 3)


def test_refusals_go_after_their_days(acme, settings):
    now = timezone.now()
    for days in (1, 9, 11):
        at = now - timedelta(days=days)
        RefusalCount(
            id=uuid7(), minute=at, tenant=acme.tenant, status=429, code="x", count=1, last_request=uuid7(), last_at=at
        ).save(force_insert=True)
        RefusedRequest(id=uuid7(), at=at, tenant=acme.tenant, status=429, code="x").save(force_insert=True)
    assert purge(now) == 0
    settings.SLUICE_REFUSAL_DAYS = 10
    assert purge(now) == 2
    assert RefusalCount.objects.of(acme.tenant).count() == 2
    assert RefusedRequest.objects.of(acme.tenant).count() == 2


def test_a_tenant_keeps_its_rows_for_fewer_days_than_others(acme, other):
    now = timezone.now()
    tenants.set_settings(tenant=acme.tenant, response_days=3, file_days=4, batch_days=5, refusal_days=6)
    for party in (acme, other):
        own = {"tenant": party.tenant, "project": party.project}
        lasts = {"expires_at": now + timedelta(days=20)}
        for days in range(1, 11):
            at = now - timedelta(days=days, minutes=1)
            count = {"minute": at, "status": 429, "code": "x", "count": 1, "last_request": uuid7(), "last_at": at}
            RefusalCount(id=uuid7(), tenant=party.tenant, **count).save(force_insert=True)
            RefusedRequest(id=uuid7(), at=at, tenant=party.tenant, status=429, code="x").save(force_insert=True)
            stored = {"status": "completed", "input": b"", "body": b"", "size": 0, "created_at": at}
            StoredResponse(id=uuid7(), **own, **lasts, **stored).save(force_insert=True)
            said = {"user": party.owner, "title": "t", "content": b"{}", "size": 2, "changed_at": at}
            Conversation(id=uuid7(), tenant=party.tenant, **said).save(force_insert=True)
            file = {"purpose": "batch", "filename": "f", "bytes": 0, "state": StoredFile.State.READY, "created_at": at}
            StoredFile(**own, **lasts, **file).save(force_insert=True)
            batch = {"api_key": uuid7(), "endpoint": "e", "input_file": uuid7(), "ended_at": at}
            Batch(**own, **lasts, **batch).save(force_insert=True)
    purge(now)
    hide_expired(now, limit=100)
    forget_batches(now, limit=100)

    def left(party):
        files = StoredFile.objects.of(party.tenant).filter(state=StoredFile.State.READY)
        rows = (StoredResponse, Conversation, None, Batch, RefusalCount, RefusedRequest)
        return [(files if each is None else each.objects.of(party.tenant)).count() for each in rows]

    assert (left(acme), left(other)) == ([2, 2, 3, 4, 5, 5], [10, 10, 10, 10, 10, 10])


def test_conversations_go_after_their_last_message_and_where_nothing_may_be_stored(acme, other, settings):
    now = timezone.now()
    for party in (acme, other):
        for days in (1, 9, 11):
            said = {
                "user": party.owner,
                "title": "t",
                "content": b"{}",
                "size": 2,
                "changed_at": now - timedelta(days=days),
            }
            Conversation(id=uuid7(), tenant=party.tenant, **said).save(force_insert=True)
    assert purge(now) == 0
    settings.SLUICE_RESPONSE_DAYS = 10
    assert purge(now) == 2
    tenants.set_settings(tenant=acme.tenant, response_storage=Tenant.Storage.FORBIDDEN)
    assert purge(now) == 2
    assert (Conversation.objects.of(acme.tenant).count(), Conversation.objects.of(other.tenant).count()) == (0, 2)


def test_jobs_do_it(rows, monkeypatch):
    """By the clock of `rows`, which keeps one invitation for a second more: the jobs before may take longer."""
    monkeypatch.setattr(tasks.clock, "now", lambda: rows)
    monkeypatch.setattr("operation.management.commands.jobs.need_database", lambda: None)
    call_command("jobs", "--once")
    assert left() == (1, 1, 3)


def test_an_invitation_that_was_taken_up_goes_after_its_days(acme, settings):
    now = timezone.now()
    assert Invitation.objects.of(acme.tenant).filter(accepted_at__isnull=False).count() == 1
    assert purge(now + timedelta(days=29)) == 0
    assert purge(now + timedelta(days=31)) == 1


@pytest.mark.parametrize(
    ("setting", "make"),
    [
        ("SLUICE_MAIL_DAYS", lambda at: OutgoingMail.objects.create(to="a@x.example", sealed_text="", ended_at=at)),
        (
            "SLUICE_RECONCILIATION_DAYS",
            lambda at: Reconciliation.objects.create(started_at=at, finished_at=at, is_running=None, found=0),
        ),
    ],
)
def test_what_has_ended_goes_after_its_days(db, settings, setting, make):
    now = timezone.now()
    for days in (1, 9, 11, 400):
        make(now - timedelta(days=days))
    setattr(settings, setting, 10)
    assert purge(now) == 2


def test_mail_that_waits_stays(db):
    OutgoingMail.objects.create(to="a@x.example", sealed_text="")
    assert purge(timezone.now() + timedelta(days=400)) == 0


def test_the_audit_trail_stays_unless_the_settings_say_otherwise(acme, settings):
    now = timezone.now()
    for days in (100, 370, 800):
        AuditEvent(
            at=now - timedelta(days=days), actor="a", action="old", target_type="t", target_id="i", target="t"
        ).save()
    purge(now)
    assert AuditEvent.objects.unscoped().filter(action="old").count() == 3
    settings.SLUICE_AUDIT_DAYS = 366
    assert purge(now) == 2
    assert AuditEvent.objects.unscoped().filter(action="old").count() == 1


def test_a_machine_whose_clock_is_ahead_purges_by_the_databases(acme, settings, monkeypatch):
    """The database refuses to give up what is younger by its own clock, and nothing was purged any more."""
    settings.SLUICE_AUDIT_DAYS = LEAST_AUDIT_DAYS
    at = timezone.now() - timedelta(days=LEAST_AUDIT_DAYS)
    for seconds in (-60, 60):
        AuditEvent(
            at=at + timedelta(seconds=seconds), actor="a", action="old", target_type="t", target_id="i", target="t"
        ).save()
    Session.objects.create(session_key="old", expire_date=timezone.now() - timedelta(seconds=1))
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(minutes=5))
    assert tasks._purge()
    assert not Session.objects.exists()
    assert AuditEvent.objects.unscoped().filter(action="old").count() == 1


def test_the_database_lets_no_audit_event_of_the_last_year_go(acme):
    for days, is_kept in ((364, True), (366, False)):
        event = AuditEvent(
            at=timezone.now() - timedelta(days=days), actor="a", action="x", target_type="t", target_id="i", target="t"
        )
        event.save()
        doomed = AuditEvent.objects.unscoped().filter(pk=event.pk)
        if is_kept:
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                doomed._raw_delete("default")
        else:
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                doomed.update(actor="another")
            doomed._raw_delete("default")
        assert doomed.exists() == is_kept


def test_nobody_is_said_to_have_deleted_it(rows):
    before = AuditEvent.objects.unscoped().count()
    while purge(rows):
        pass
    assert AuditEvent.objects.unscoped().count() == before


def test_what_a_payment_provider_told_long_ago_goes_but_not_of_our_purchases(acme):
    now, old = timezone.now(), timezone.now() - timedelta(days=91)
    Purchase.objects.create(tenant=acme.tenant, amount=1, price=1, currency="EUR", payment="pi_ours")
    for number, (at, payment) in enumerate(((old, "pi_ours"), (old, "pi_other"), (now, "pi_new"))):
        PaymentEvent.objects.create(id=f"evt_{number}", type="refund.created", created_at=at)
        claim = {"kind": "refund", "amount": 1, "state": 1, "created_at": at}
        PaymentClaim.objects.create(id=f"re_{number}", payment=payment, **claim)
    assert purge(now) == 3
    assert sorted(PaymentClaim.objects.values_list("payment", flat=True)) == ["pi_new", "pi_ours"]
    assert PaymentEvent.objects.get().pk == "evt_2"
