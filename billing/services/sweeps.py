"""What time alone changes, as sweeps over rows: safe to repeat, to overlap and to be cut off between two of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import Q

from billing import clock
from billing.models import Subscription, Wallet
from billing.services import plans
from billing.writer.apply import apply_now
from billing.writer.operations import Roll, Rolled

_REST_S = 0.002
T = TypeVar("T")


def grant_monthly(now: datetime, limit: int = 20) -> int:
    """Grant the current month to at most `limit` subscriptions that haven't had it, and return how many were done.

    Failures are raised together, after the others were done.
    """
    due = Subscription.objects.filter(
        Q(granted_until=None) | Q(granted_until__lte=now), state=Subscription.State.ACTIVE
    ).order_by("granted_until")
    ids = list(due.values_list("pk", flat=True)[:limit])
    _each(ids, lambda subscription: plans.grant_month(subscription, now))
    return len(ids)


def expire_grants(limit: int = 20) -> int:
    """Post the expired credit of at most `limit` wallets to breakage, and return the µcr that expired.

    Wallets without holds come first, since theirs is done for good; the others keep what their holds may need.
    Failures are raised together, after the others were done.
    """
    due = Wallet.objects.filter(next_grant_change_at__lte=clock.now()).order_by("held", "next_grant_change_at")
    return sum(_each(list(due.values_list("pk", flat=True)[:limit]), _roll))


def _roll(wallet: UUID) -> int:
    [answer] = apply_now([Roll(wallet)])
    assert isinstance(answer, Rolled), answer
    return answer.expired


def _each(ids: list[UUID], action: Callable[[UUID], T]) -> list[T]:
    """Do `action` with each id in a transaction of its own; one that fails doesn't keep the others from being done."""
    results: list[T] = []
    errors: list[Exception] = []
    for identifier in ids:
        try:
            results.append(action(identifier))
        except Exception as error:  # noqa: BLE001 - all are raised together below
            error.add_note(f"while working on {identifier}")
            errors.append(error)
        rest()
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(ids)} failed", errors)
    return results


def rest() -> None:
    """Leave SQLite's only lock free for a moment, or other processes starve; nothing to do on PostgreSQL."""
    if connection.vendor == "sqlite":
        time.sleep(_REST_S)
