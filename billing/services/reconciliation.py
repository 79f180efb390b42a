"""Checks the books now and then, keeps what was found, and notes up to where they were right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Coalesce

from base import clock
from base.heartbeat import touch_heartbeat
from billing import reconcile
from billing.models import Reconciliation
from billing.services.errors import CreditError

MOST_FINDINGS = 200
LOST_AFTER = timedelta(hours=2)
"""A run that wasn't seen for so long was killed; another may begin."""
TOLD_EVERY = timedelta(seconds=2)


class BooksBusyError(CreditError):
    """Another process checks the books, or takes rows out of them."""


def reconcile_if_due(every: timedelta, *, whole: bool = False, all_seals: bool = False) -> Reconciliation | None:
    """Check what came since the last good check, or with `whole` all, if the last one began `every` ago; return it, or
    None where another one did or does it. Without a good one before, all is checked.
    """
    if (run := _begin(clock.now(), every)) is None:
        return None
    with _ending(run):
        reach = None if whole or all_seals else reconcile.last_reach()
        now = reconcile.reached(connection)
        run.is_whole, run.rows, run.seen_at = reach is None, reconcile.rows_of(connection, reach), clock.now()
        run.save()
        findings = reconcile.check(connection, reach=reach, all_seals=all_seals, told=_Progress(run).add)
        with transaction.atomic():
            run.is_running, run.finished_at, run.done = None, clock.now(), run.rows
            run.found = len(findings)
            run.findings = [dataclasses.asdict(finding) for finding in findings[:MOST_FINDINGS]]
            if not findings:
                if reach is not None:
                    now = reconcile.Reach(max(now.transfer, reach.transfer), max(now.record, reach.record))
                reconcile.note(connection, reach, now)
                run.transfer, run.record = now.transfer, now.record
            run.save(force_update=True)  # fails where it was thought to be lost: another one notes sums then
    return run


@contextmanager
def books_kept() -> Iterator[None]:
    """Let no check run meanwhile; raise BooksBusyError where one does."""
    if (run := _begin(clock.now(), timedelta(0))) is None:
        raise BooksBusyError("the books are being checked: try again when that is over")
    with _ending(run):
        yield
    run.delete()


class _Progress:
    """Keeps in a run how many rows were read."""

    def __init__(self, run: Reconciliation) -> None:
        self._run, self._told_at = run, run.seen_at

    def add(self, rows: int) -> None:
        self._run.done += rows
        touch_heartbeat()
        now = clock.now()
        if self._told_at is None or now - self._told_at >= TOLD_EVERY:
            self._told_at = now
            Reconciliation.objects.filter(pk=self._run.pk).update(done=self._run.done, seen_at=now)


@contextmanager
def _ending(run: Reconciliation) -> Iterator[None]:
    try:
        yield
    except BaseException:
        Reconciliation.objects.filter(pk=run.pk).delete()
        raise


def _begin(now: datetime, every: timedelta) -> Reconciliation | None:
    running = Reconciliation.objects.filter(is_running=True).alias(seen=Coalesce("seen_at", "started_at"))
    running.filter(seen__lt=now - LOST_AFTER).delete()
    recent = Reconciliation.objects.filter(started_at__gt=now - every)
    if recent.exists():
        return None
    try:
        with transaction.atomic():
            run = Reconciliation.objects.create(started_at=now)
    except IntegrityError:  # another one began meanwhile: at most one is running
        return None
    if recent.exclude(pk=run.pk).exists():  # another one began and ended meanwhile: only now can no third begin
        run.delete()
        return None
    return run
