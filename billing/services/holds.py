"""Holds whose lease is over: marked orphaned, and listed for whoever settles or releases them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Greatest

from base import clock
from base.leases import ended
from billing.models import Hold, Wallet
from billing.services.wallets import lock


@dataclass(frozen=True, slots=True)
class OrphanedHold:
    """A hold whose gateway let its lease run out, with all that settling or releasing it needs.

    `amount` is µcr. `checkpoint` is the last usage (tokens by class) that its gateway stored. The answer of a streamed
    request was sent while it was generated, so the client may have part of it. `kept` is the run of the kept answer
    that the request belongs to.
    """

    request: UUID
    wallet: UUID
    tenant: UUID
    user: UUID | None
    model: str
    deployment: UUID
    card_version: UUID
    multiplier_bp: int
    amount: int
    checkpoint: Mapping[str, int]
    is_streamed: bool
    kept: UUID | None
    owner: UUID
    orphaned_at: datetime


def take_expired(limit: int = 100, *, lease: timedelta | None = None) -> list[OrphanedHold]:
    """Mark holds whose lease is over as orphaned, and return them and the ones marked before, oldest lease first.

    An orphan's credit stays held, its gateway can't renew its lease, and it is returned again by each call until it is
    settled or released. Several callers may work at once: closing is decided by the writer. With a `lease`, what is
    returned is the caller's for so long, and no other call that asks for leases gets it. At most `limit` are returned;
    those of a wallet that is locked just now are not.
    """
    over = Q(lease_until__lt=clock.now())
    orphaned = Q(state=Hold.State.ORPHANED)
    due = list(
        Hold.objects.filter(Q(over, state=Hold.State.HELD) | (orphaned if lease is None else orphaned & over))
        .order_by("lease_until", "id")
        .values_list("id", "wallet_id", "state")[:limit]
    )
    by_wallet: dict[UUID, list[UUID]] = defaultdict(list)
    for identifier, wallet, state in due:
        if state == Hold.State.HELD:
            by_wallet[wallet].append(identifier)
    for wallet, identifiers in sorted(by_wallet.items()):
        _orphan(wallet, identifiers)
    found = Hold.objects.filter(orphaned, pk__in=[identifier for identifier, _, _ in due])
    if lease is not None:
        found = Hold.objects.filter(pk__in=_leased(found, lease))
    return [_as_orphan(hold) for hold in found.order_by("lease_until", "id")]


def _leased(orphans: QuerySet[Hold], lease: timedelta) -> list[UUID]:
    """Take leases of those that nobody else has or is taking, and return their ids.

    Only holds are locked, and none is waited for, so that no other order of locks can be in the way.
    """
    with transaction.atomic():
        now = clock.now()
        free = orphans.filter(lease_until__lt=now).select_for_update(skip_locked=True, no_key=True)
        mine = list(free.values_list("pk", flat=True))
        Hold.objects.filter(pk__in=mine).update(lease_until=now + lease)
    return mine


def end_leases_of_earlier_owners(current_owner: UUID) -> int:
    """End every hold's lease that isn't `current_owner`'s, and return how many there were.

    Only for the holder of the one gateway's lock, which proves that the earlier owners have ended.
    """
    now = clock.now()
    others = Hold.objects.filter(state=Hold.State.HELD, lease_until__gt=now).exclude(owner=current_owner)
    return others.update(lease_until=ended("reserved_at", now))


def end_restored_leases() -> int:
    """Let every open hold's lease end now, as if its gateway had just been lost, and return how many there are.

    Only for a database that was just restored: however old it is, sweeps then look for evidence as long as ever.
    """
    now = clock.now()
    return Hold.objects.update(state=Hold.State.HELD, orphaned_at=None, lease_until=Greatest("reserved_at", now))


def _orphan(wallet: UUID, identifiers: list[UUID]) -> None:
    """Under the wallet's lock, mark those of the holds whose leases are still over.

    A wallet that another transaction has locked is left for the next call, so that other wallets don't wait for it.
    """
    with transaction.atomic():
        free = Wallet.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=wallet)
        if not list(free):
            return
        lock(wallet)
        now = clock.now()
        still = Hold.objects.filter(pk__in=identifiers, state=Hold.State.HELD, lease_until__lt=now)
        still.update(state=Hold.State.ORPHANED, orphaned_at=now)


def _as_orphan(hold: Hold) -> OrphanedHold:
    assert hold.orphaned_at is not None, "an orphaned hold has orphaned_at"
    return OrphanedHold(
        request=hold.id,
        wallet=hold.wallet_id,
        tenant=hold.tenant,
        user=hold.user,
        model=hold.model,
        deployment=hold.deployment,
        card_version=hold.card_version,
        multiplier_bp=hold.multiplier_bp,
        amount=hold.amount,
        checkpoint=hold.checkpoint,
        is_streamed=bool(hold.facts.get("streamed")),
        kept=UUID(hold.facts["kept"]) if hold.facts.get("kept") else None,
        owner=hold.owner,
        orphaned_at=hold.orphaned_at,
    )
