"""Periodic work: one list for the loop, Celery and cron; runs that come twice, at once or cut off change nothing."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from django.contrib.sessions.models import Session
from django.core import mail as django_mail
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Count, Sum
from django.utils import timezone

from base.ids import uuid7
from billing import reconcile
from billing.jobs import Job
from billing.models import (
    CreditGrant,
    Hold,
    LedgerTransfer,
    OutboxEvent,
    Reconciliation,
    Subscription,
    UsageRollup,
    Wallet,
)
from billing.services import credits
from billing.writer.apply import apply_now
from billing.writer.operations import Reserve, Settle
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch
from gateway.runtime.models import RefusalCount
from operation.jobs import tasks
from tenancy.models import AuditEvent, Invitation, OutgoingMail, SignInLink
from tenancy.services import links, mail, members
from tests.billing.conftest import MovedClock
from tests.gateway import due as rows_due
from tests.parties import make_party
from tests.rows import again

pytestmark = pytest.mark.slow

NAMES = [job.name for job in tasks.JOBS]
PARTIES = 3
DUE = 21  # rows of each kind: more than a chunk of any sweep


@pytest.mark.django_db
def test_cron_does_all_of_the_list(monkeypatch):
    monkeypatch.setattr(
        "operation.management.commands.jobs.need_database", lambda: None
    )  # it looks past the test's transaction
    done = []
    monkeypatch.setattr(tasks, "JOBS", [Job(name, lambda name=name: done.append(name), every_s=1) for name in NAMES])
    call_command("jobs", "--once")
    assert done == NAMES


@pytest.mark.django_db
def test_with_cron_what_fails_keeps_nothing_else_from_being_done(monkeypatch, caplog):
    """An event that can't be added to the sums stays, and fails each time."""
    monkeypatch.setattr("operation.management.commands.jobs.need_database", lambda: None)  # same
    OutboxEvent.objects.create(topic="usage", payload={"records": ["none"]})
    mail.queue_mail(to="a@x.example", subject="s", text="t")
    with pytest.raises(CommandError, match=r"failed: billing\.rollups$"):
        call_command("jobs", "--once")
    assert "while consuming outbox event" in caplog.text
    assert OutgoingMail.objects.get().state == "sent"


def test_the_page_tells_of_each_task_and_how_often_it_runs():
    page = (Path(__file__).resolve().parents[3] / "docs/jobs.md").read_text()
    told = re.findall(r"^\| `((?:billing|fleet|gateway|operation)\.\w+)` \| (\d+) (s|min)\b", page, re.MULTILINE)
    seconds = {name: int(number) * {"s": 1, "min": 60}[unit] for name, number, unit in told}
    assert seconds == {job.name: job.every_s for job in tasks.JOBS}


def test_a_task_that_fails_is_logged_and_left_alone_for_a_while(caplog, monkeypatch):
    runs, now = [], [100.0]

    def fail():
        runs.append(1)
        raise RuntimeError("broken row")

    monkeypatch.setattr(tasks.time, "monotonic", lambda: now[0])
    task = tasks.task(Job("bad", fail, every_s=1), lambda: True)
    with caplog.at_level(logging.ERROR, logger="sluice.jobs"):
        task()
    assert "broken row" in caplog.text
    task()
    assert len(runs) == 1
    now[0] += tasks.BACK_OFF_S
    task()
    assert len(runs) == 2


def test_a_task_shows_that_its_process_lives_and_stops_when_that_has_to_end(monkeypatch, tmp_path):
    beats = tmp_path / "heartbeat"
    monkeypatch.setenv("SLUICE_HEARTBEAT", str(beats))
    chunks = []

    def step():
        chunks.append(beats.exists())
        return True

    tasks.task(Job("busy", step, every_s=1), lambda: len(chunks) < 3)()
    assert chunks == [False, True, True]


@pytest.fixture
def due(terms, transactional_db, settings, monkeypatch, tmp_path):
    """Rows of every kind for which something is to be done."""
    rows_due.keep_here(settings, tmp_path)
    monkeypatch.setattr(django_mail, "outbox", [])
    settings.SLUICE_AUDIT_DAYS, settings.SLUICE_INVITATION_DAYS = 365, 60
    now = timezone.now()
    rows_due.make(again(("due", terms), partial(_make_rows, now)), DUE)
    # A month later: each subscription's next month is due, and what was granted has ended.
    clock = MovedClock(monkeypatch)
    clock.set(now + timedelta(days=32))
    return clock


def _make_rows(now):
    """Make all of them but those with files; the party that is given these."""
    acme = make_party("acme")
    parties = [acme, *(make_party(f"p{number}") for number in range(PARTIES - 1))]
    tomorrow = now + timedelta(days=1)
    for number, party in enumerate(parties):
        wallet = Wallet.objects.get(tenant=party.tenant)
        for some in range(3):
            credits.grant(wallet_id=wallet.pk, amount=1000, kind="paid", key=f"{number}:{some}", expires_at=tomorrow)
        for _ in range(DUE // PARTIES):
            serve(party, wallet)
    for number in range(DUE):
        old = now - timedelta(days=400)
        Session.objects.create(session_key=f"old{number}", expire_date=old)
        links.mint_link(user=acme.owner)
        members.invite_member(tenant=acme.tenant, email=f"{number}@x.example")
        mail.queue_mail(to=f"{number}@x.example", subject="s", text="t")
        AuditEvent(at=old, actor="a", action="b", target_type="c", target_id="d", target="e").save()
        RefusalCount(
            id=uuid7(), minute=old, tenant=acme.tenant, status=429, code="x", count=1, last_request=uuid7(), last_at=old
        ).save(force_insert=True)
        Reconciliation.objects.create(started_at=old, finished_at=old, is_running=None, found=0)
    SignInLink.objects.update(expires_at=now - timedelta(days=1))
    Invitation.objects.unscoped().filter(accepted_at=None).update(expires_at=now - timedelta(days=400))
    return acme


def serve(party, wallet):
    some = uuid7()
    made = Reserve(
        request=uuid7(), wallet=wallet.pk, amount=50, least=1, owner=some, deployment=some, card_version=some,
        tenant=party.tenant.pk, project=party.project.pk, api_key=party.key.pk, model="m", multiplier_bp=10_000,
    )  # fmt: skip
    apply_now([made, Settle(made.request, wallet.pk, 0, {})])


def figures():
    """What the runs are to lead to, without ids and times."""
    by_code = LedgerTransfer.objects.order_by("code").values_list("code").annotate(Count("id"), Sum("amount"))
    return {
        "transfers": list(by_code),
        "grants": list(
            CreditGrant.objects.order_by("kind", "remaining").values_list("kind", "remaining").annotate(Count("id"))
        ),
        "posted": sorted(Wallet.objects.values_list("posted", "held")),
        "requests": UsageRollup.objects.aggregate(all=Sum("requests"))["all"],
        "events": OutboxEvent.objects.count(),
        "holds": Hold.objects.count(),
        "sessions": Session.objects.count(),
        "links": SignInLink.objects.count(),
        "invitations": Invitation.objects.unscoped().count(),
        "refusals": RefusalCount.objects.unscoped().count(),
        "old_events": AuditEvent.objects.unscoped().filter(action="b").count(),
        "mail": sorted(OutgoingMail.objects.values_list("to", "state", "attempts")),
        "letters": sorted(letter.to[0] for letter in django_mail.outbox),
        **rows_due.figures(),
        "reconciliations": sorted(Reconciliation.objects.values_list("is_running", "found")),
    }


def rows():
    """Every row that the work touches, as it is."""
    tables = (
        *(LedgerTransfer, CreditGrant, Wallet, Subscription, UsageRollup, OutboxEvent, Reconciliation, OutgoingMail),
        *(Batch, StoredFile),
    )
    return {table: sorted(map(str, table._base_manager.values_list())) for table in tables}


def run(jobs):
    for job in jobs:
        job.run()


def all_done():
    now = figures()
    assert (now["events"], now["sessions"], now["links"], now["refusals"], now["old_events"]) == (0, 0, 0, 0, 0)
    assert now["requests"] == DUE
    assert now["invitations"] == PARTIES  # those that were taken up
    assert now["letters"] == sorted(f"{number}@x.example" for number in range(DUE))
    assert {(sent, attempts) for _, sent, attempts in now["mail"]} == {("sent", 1)}
    assert now["reconciliations"] == [(None, 0)]
    assert {remaining for kind, remaining, _ in now["grants"] if kind == "paid"} == {0}
    assert sum(count for kind, _, count in now["grants"] if kind == "plan") == 2 * PARTIES
    rows_due.assert_all_done(now, DUE)
    assert reconcile.check(connection, recompute=False) == []
    return now


@pytest.mark.money
def test_a_second_run_changes_nothing(due):
    run(tasks.jobs())
    all_done()
    before, letters = rows(), len(django_mail.outbox)
    run(tasks.jobs())
    assert rows() == before
    assert len(django_mail.outbox) == letters


@pytest.mark.money
@pytest.mark.postgresql
def test_runs_at_once_do_what_one_does(due):
    """As in two processes: each has sweeps of its own."""
    start, failures = threading.Barrier(3), []

    def process():
        try:
            start.wait()
            run(tasks.jobs())
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=process) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    run(tasks.jobs())
    all_done()


class KilledError(BaseException):
    """The process dies."""


@pytest.mark.money
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.postgresql
def test_what_a_lost_run_left_the_next_one_does(due, name, monkeypatch):
    """The process dies after the first chunk, and messages are lost until what it had claimed is free again."""
    [job] = [job for job in tasks.jobs() if job.name == name]

    def die():
        raise KilledError

    with contextlib.suppress(KilledError):
        job.run(goes_on=die)
    due.set(timezone.now() + timedelta(days=32, minutes=10))
    run(tasks.jobs())
    all_done()
