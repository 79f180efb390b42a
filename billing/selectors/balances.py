"""A tenant's balance, and the grants that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Case, F, Q, When

from base import clock
from billing.models import CreditGrant, Hold, ScheduledGrant, Wallet
from billing.writer.grants import kept_for_holds, rolling_over
from billing.writer.view import RANKS, models_in, read_pools


@dataclass(frozen=True, slots=True)
class Restricted:
    """Credit for some models alone: `rest` µcr are left of it, and a new request of one of them may hold `available`,
    the credit for every model included.
    """

    models: tuple[str, ...]
    rest: int
    available: int


@dataclass(frozen=True, slots=True)
class Balance:
    """A wallet's sums in µcr: a new request may hold `available`, and more where there is `restricted` credit for its
    model; `expiring` is what ends next, at `expires_at`.
    """

    wallet: UUID
    posted: int
    held: int
    overdraft_limit: int
    available: int
    expiring: int
    expires_at: datetime | None
    is_frozen: bool = False
    restricted: tuple[Restricted, ...] = ()

    def available_for(self, model: str) -> int:
        """Return what a new request of the model may hold."""
        return next((one.available for one in self.restricted if model in one.models), self.available)

    @property
    def for_some(self) -> int:
        """The µcr that some models' requests may hold beyond what all may."""
        return sum(one.available - self.available for one in self.restricted)


def balance_of(tenant: UUID, *, name: str = "main") -> Balance | None:
    """Return the tenant's balance now, less credit that has expired; None when there is no such wallet."""
    wallet = Wallet.objects.filter(tenant_id=tenant, name=name).annotate(now=clock.now_in_query()).first()
    if wallet is None:
        return None
    grants = CreditGrant.objects.filter(wallet=wallet, remaining__gt=0, expires_at__isnull=False).order_by("expires_at")
    ends = list(grants.only("expires_at", "remaining", "restriction", "rollover", "rollover_until"))
    pools = read_pools(wallet.pools)
    ended = [one for one in ends if one.expires_at is not None and one.expires_at <= wallet.now]
    coming = [one for one in ends[len(ended) :] if one.remaining > (one.rollover or 0)]  # the rest rolls over
    first = coming[0].expires_at if coming else None
    expired = 0
    if ended:  # what open holds may still need of it doesn't expire yet
        holds = wallet.holds.values_list("reserved_at", "amount", "model", "pk")
        rests = [(one.pk, one.expires_at, one.remaining, one.restriction) for one in ended]
        kept = kept_for_holds(rests, holds, {models: pool.rest for models, pool in pools.items()})
        for one in ended:
            free_of = one.remaining - kept[one.pk]
            lost = free_of - rolling_over(one, free_of, wallet.now)
            expired += lost
            if one.restriction in pools:
                pools[one.restriction].rest -= lost
    free = wallet.posted - wallet.held - expired + wallet.overdraft_limit - sum(pool.free for pool in pools.values())
    return Balance(
        wallet=wallet.pk,
        posted=wallet.posted,
        held=wallet.held,
        overdraft_limit=wallet.overdraft_limit,
        available=free,
        expiring=sum(one.remaining - (one.rollover or 0) for one in coming if one.expires_at == first),
        expires_at=first,
        is_frozen=wallet.state == Wallet.State.FROZEN,
        restricted=tuple(
            Restricted(tuple(sorted(models_in(models))), pool.rest, free + pool.free)
            for models, pool in sorted(pools.items())
            if pool.rest
        ),
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
