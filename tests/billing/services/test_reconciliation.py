"""The books are checked once in a while, by one at a time, and what is found is kept."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from billing import reconcile
from billing.models import Reconciliation, Wallet
from billing.selectors.reconciliation import last_reconciliation
from billing.services import reconciliation
from billing.services.reconciliation import LOST_AFTER, MOST_FINDINGS, reconcile_if_due

pytestmark = [pytest.mark.money, pytest.mark.django_db]

DAY = timedelta(days=1)
NOW = timedelta(0)


def test_it_runs_once_in_its_time(wallet, clock):
    assert last_reconciliation() is None
    run = reconcile_if_due(DAY)
    assert (run.found, run.findings, run.is_running) == (0, [], None)
    assert reconcile_if_due(DAY) is None
    assert last_reconciliation() == run
    clock.set(timezone.now() + DAY + timedelta(seconds=1))
    assert reconcile_if_due(DAY) != run
    assert Reconciliation.objects.count() == 2


def test_findings_are_kept(wallet):
    Wallet.objects.filter(pk=wallet.pk).update(posted=7)
    run = reconcile_if_due(DAY)
    assert run.found == 1
    [finding] = run.findings
    assert (finding["check"], UUID(finding["subject"])) == ("wallet_posted", wallet.pk)
    assert finding["detail"] == "posted 7, transfers 0"


def test_of_many_findings_the_first_are_kept(wallet, monkeypatch):
    many = [reconcile.Finding("some", str(number), "differs") for number in range(MOST_FINDINGS + 5)]
    monkeypatch.setattr(reconcile, "check", lambda *_, **__: many)
    run = reconcile_if_due(DAY)
    assert (run.found, len(run.findings)) == (MOST_FINDINGS + 5, MOST_FINDINGS)


def test_while_one_runs_no_other_begins(monkeypatch):
    meanwhile = []

    def check(*_, **options):
        meanwhile.append(reconcile_if_due(NOW))
        return []

    monkeypatch.setattr(reconcile, "check", check)
    assert reconcile_if_due(NOW) is not None
    assert meanwhile == [None]


def test_one_that_began_and_ended_while_another_was_about_to_begin_is_enough(monkeypatch):
    """The other process looked before, found none, and begins after it."""
    create, between = Reconciliation.objects.create, []

    def begin(**fields):
        if not between:
            between.append(None)
            between[0] = reconcile_if_due(DAY)
        return create(**fields)

    monkeypatch.setattr(Reconciliation.objects, "create", begin)
    assert reconcile_if_due(DAY) is None
    assert list(Reconciliation.objects.all()) == between
    assert between[0].found == 0


def test_one_that_was_killed_is_begun_again(monkeypatch, clock):
    class KilledError(BaseException):
        pass

    Reconciliation.objects.create(started_at=timezone.now())  # what a killed process leaves
    assert reconcile_if_due(DAY) is None
    clock.set(timezone.now() + LOST_AFTER + timedelta(seconds=1))
    run = reconcile_if_due(DAY)
    assert list(Reconciliation.objects.all()) == [run]


def test_one_that_fails_is_due_again(monkeypatch):
    def fail(*_, **options):
        raise RuntimeError("no connection")

    with monkeypatch.context() as broken:
        broken.setattr(reconcile, "check", fail)
        with pytest.raises(RuntimeError):
            reconcile_if_due(DAY)
    assert reconcile_if_due(DAY) is not None


def test_how_far_it_is_stands_in_its_row(give, record, monkeypatch):
    give(100)
    record()
    check, seen = reconcile.check, []

    def watched(*given, told, **options):
        def tell(rows):
            told(rows)
            row = Reconciliation.objects.get()
            seen.append((row.done, row.rows, row.percent))

        return check(*given, told=tell, **options)

    monkeypatch.setattr(reconciliation, "TOLD_EVERY", NOW)
    monkeypatch.setattr(reconcile, "check", watched)
    run = reconcile_if_due(NOW)
    assert seen == sorted(seen)
    assert len({done for done, _, _ in seen}) > 3
    assert {rows for _, rows, _ in seen} == {run.rows}
    assert seen[-1][0] <= run.done == run.rows
