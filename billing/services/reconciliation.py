"""Checks the books now and then, and keeps what was found."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from django.db import IntegrityError, connection, transaction

from base import clock
from billing import reconcile
from billing.models import Reconciliation

MOST_FINDINGS = 200
LOST_AFTER = timedelta(hours=2)
"""A run that didn't end meanwhile was killed; another may begin."""


def reconcile_if_due(every: timedelta) -> Reconciliation | None:
    """Check the books if the last check began `every` ago; return it, or None where another one did or does it."""
    if (run := _begin(clock.now(), every)) is None:
        return None
    try:
        findings = reconcile.check(connection)
    except BaseException:
        run.delete()
        raise
    run.is_running, run.finished_at = None, clock.now()
    run.found = len(findings)
    run.findings = [dataclasses.asdict(finding) for finding in findings[:MOST_FINDINGS]]
    run.save()
    return run


def _begin(now: datetime, every: timedelta) -> Reconciliation | None:
    Reconciliation.objects.filter(is_running=True, started_at__lt=now - LOST_AFTER).delete()
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
