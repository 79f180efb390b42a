"""Spend limits of API keys: set, changed and lifted under the wallet's lock."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from base import clock
from billing.models import Budget
from billing.services.wallets import lock


@dataclass(frozen=True, slots=True)
class SpendLimits:
    """A key's spending limits in µcr: a day, a month (of UTC), in all; None is no limit."""

    day_limit: int | None = None
    month_limit: int | None = None
    total_limit: int | None = None


def limits_of(budget: Budget | None) -> SpendLimits:
    """Return a budget's limits."""
    if budget is None:
        return SpendLimits()
    return SpendLimits(budget.day_limit, budget.month_limit, budget.total_limit)


@dataclass(frozen=True, slots=True)
class Spent:
    """The spending that counts in a budget now, in µcr; None without a budget."""

    day: int | None = None
    month: int | None = None
    total: int | None = None


def spent_of(budget: Budget | None) -> Spent:
    """Return what was spent today, this month and in all."""
    if budget is None:
        return Spent()
    today = timezone.now().astimezone(UTC).date()
    day = budget.day_spent if budget.day >= today else 0
    return Spent(day, budget.month_spent if budget.month >= today.replace(day=1) else 0, budget.total_spent)


@transaction.atomic
def set_budget(*, wallet: UUID, api_key: UUID, limits: SpendLimits) -> Budget:
    """Return the key's budget with these limits; a new one counts from now on.

    A budget whose limits are lifted stays and goes on counting, so that limits set again apply to all that was spent.
    Raises WalletNotFoundError.
    """
    lock(wallet)
    mine = Budget.objects.filter(api_key=api_key)
    if mine.update(**asdict(limits)):
        return mine.get()
    today = clock.now().astimezone(UTC).date()
    return Budget.objects.create(
        wallet_id=wallet, api_key=api_key, day=today, month=today.replace(day=1), **asdict(limits)
    )
