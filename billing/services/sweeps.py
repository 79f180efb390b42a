"""Sweeps over rows that are due by time alone: safe to repeat, to overlap and to be killed between two rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from base import clock
from billing.models import RecurringGrant, ScheduledGrant, Subscription, Wallet
from billing.services import plans, recurring
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants, GrantsExpired

CHUNK = 20
_REST_S = 0.002


class Sweep:
    """Calls `act` with the id of every row that is due, a chunk per `turn`; `act` is one transaction.

    A round goes through the rows in the order of their ids, so that one that fails delays none of the others:
    it is tried again in the next round. The failures of a round are raised together at its end.
    """

    def __init__(self, due: Callable[[], QuerySet[Any]], act: Callable[[UUID], object]) -> None:
        self._due = due
        self._act = act
        self._after: UUID | None = None
        self._failed: list[Exception] = []

    @property
    def is_under_way(self) -> bool:
        """True while a round has rows left."""
        return self._after is not None

    def turn(self, limit: int = CHUNK) -> int:
        """Do the round's next chunk, a new round's first when it is over, and return how many rows it had."""
        rows = self._due().order_by("pk")
        if self._after is not None:
            rows = rows.filter(pk__gt=self._after)
        ids = list(rows.values_list("pk", flat=True)[:limit])
        for identifier in ids:
            try:
                self._act(identifier)
            except Exception as error:  # noqa: BLE001 - all are raised together below
                error.add_note(f"while working on {identifier}")
                self._failed.append(error)
            rest()
        self._after = ids[-1] if len(ids) == limit else None
        if self._failed and not self.is_under_way:
            failed, self._failed = self._failed, []
            raise ExceptionGroup(f"{len(failed)} rows failed", failed)
        return len(ids)


def monthly_grants(now: Callable[[], datetime] = clock.now) -> Sweep:
    """Return the sweep that begins the current month of every subscription where that wasn't done, and schedules the
    credit of the next one where none is.
    """

    def due() -> QuerySet[Subscription]:
        scheduled = ScheduledGrant.objects.filter(
            wallet__tenant=OuterRef("tenant"), source__startswith="month:", begins_at=OuterRef("granted_until")
        )
        after = Coalesce("next_version__monthly_credits", "version__monthly_credits")
        is_unscheduled = Q(after__gt=0, is_ending=False) & ~Exists(scheduled)
        waiting = Q(granted_until=None) | Q(granted_until__lte=now()) | is_unscheduled
        return Subscription.objects.alias(after=after).filter(waiting, state=Subscription.State.ACTIVE)

    return Sweep(due, lambda subscription: plans.grant_month(subscription, now()))


def recurring_grants(now: Callable[[], datetime] = clock.now) -> Sweep:
    """Return the sweep that schedules the next window's credit of every recurring grant once the last one's began."""
    return Sweep(
        lambda: RecurringGrant.objects.filter(state=RecurringGrant.State.ACTIVE, next_at__lte=now()),
        lambda one: recurring.advance(one, now()),
    )


def expiry() -> Sweep:
    """Return the sweep that lets every wallet's scheduled grants begin, and posts what has expired to breakage.

    A wallet stays due while open holds may need some of it. Wallets in use need no sweep: every operation of the writer
    that depends on available credit lets the wallet's grants expire first.
    """

    def expire(wallet: UUID) -> None:
        [answer] = apply_now([ExpireGrants(wallet)])
        assert isinstance(answer, GrantsExpired), answer

    return Sweep(lambda: Wallet.objects.filter(next_grant_change_at__lte=clock.now()), expire)


def rest() -> None:
    """Leave SQLite's only lock free for 2 ms, or other processes starve; does nothing on PostgreSQL."""
    if connection.vendor == "sqlite":
        time.sleep(_REST_S)
