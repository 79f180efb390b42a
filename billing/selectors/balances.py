"""A tenant's balance, and the grants that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Case, F, Q, When

from base import clock
from billing.models import CreditGrant, Hold, ScheduledGrant, Wallet
from billing.writer.grants import kept_for_holds, rolling_over
from billing.writer.view import RANKS


@dataclass(frozen=True, slots=True)
class Balance:
    """A wallet's sums in µcr: a new request may hold `available`; `expiring` is what ends next, at `expires_at`."""

    wallet: UUID
    posted: int
    held: int
    overdraft_limit: int
    available: int
    expiring: int
    expires_at: datetime | None
    is_frozen: bool = False


def balance_of(tenant: UUID, *, name: str = "main") -> Balance | None:
    """Return the tenant's balance now, less credit that has expired; None when there is no such wallet."""
    wallet = Wallet.objects.filter(tenant_id=tenant, name=name).annotate(now=clock.now_in_query()).first()
    if wallet is None:
        return None
    grants = CreditGrant.objects.filter(wallet=wallet, remaining__gt=0, expires_at__isnull=False).order_by("expires_at")
    ends = list(grants.only("expires_at", "remaining", "rollover", "rollover_until"))
    ended = [one for one in ends if one.expires_at is not None and one.expires_at <= wallet.now]
    coming = ends[len(ended) :]
    first = coming[0].expires_at if coming else None
    expired = 0
    if ended:  # what open holds may still need of it doesn't expire yet
        holds = wallet.holds.values_list("reserved_at", "amount")
        kept = kept_for_holds([(one.pk, one.expires_at, one.remaining) for one in ended], holds)
        free_of = [(one, one.remaining - kept[one.pk]) for one in ended]
        expired = sum(free - rolling_over(one, free, wallet.now) for one, free in free_of)
    free = wallet.posted - wallet.held - expired
    return Balance(
        wallet=wallet.pk,
        posted=wallet.posted,
        held=wallet.held,
        overdraft_limit=wallet.overdraft_limit,
        available=free + wallet.overdraft_limit,
        expiring=sum(max(one.remaining - (one.rollover or 0), 0) for one in coming if one.expires_at == first),
        expires_at=first,
        is_frozen=wallet.state == Wallet.State.FROZEN,
    )


def grants_of(wallet: UUID, limit: int) -> list[CreditGrant]:
    """Return the wallet's grants that have credit left, in the order in which they are used up, at most `limit`."""
    live = CreditGrant.objects.filter(Q(expires_at=None) | Q(expires_at__gt=clock.now_in_query()), wallet=wallet)
    live = live.filter(remaining__gt=0, voided_at=None)
    rank = Case(*(When(kind=kind, then=number) for kind, number in RANKS.items()), default=1)
    return list(live.order_by("priority", F("expires_at").asc(nulls_last=True), rank, "effective_at", "id")[:limit])


def coming_grants_of(wallet: UUID, limit: int) -> list[ScheduledGrant]:
    """Return the credit that the wallet gets later, the soonest first."""
    return list(ScheduledGrant.objects.filter(wallet=wallet).order_by("begins_at", "id")[:limit])


def running_of(wallet: UUID) -> int:
    """Return how many requests of the wallet run now."""
    return Hold.objects.filter(wallet=wallet).count()
