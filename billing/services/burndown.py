"""The order in which grants are burnt down, and what of an ended grant its open holds may still need."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

from billing.models import CreditGrant

_KINDS_LAST = CreditGrant.Kind.PAID
_NEVER = datetime.max.replace(tzinfo=UTC)


def burn_order(grant: CreditGrant) -> tuple[int, datetime, bool, datetime, UUID]:
    """Return the sort key: priority, expiry (never last), anything before paid, age, id."""
    return (
        grant.priority,
        grant.expires_at or _NEVER,
        grant.kind == _KINDS_LAST,
        grant.effective_at,
        grant.pk,
    )


def is_live(grant: CreditGrant, now: datetime) -> bool:
    """True when a hold made now may be paid from the grant."""
    has_ended = grant.expires_at is not None and grant.expires_at <= now
    return not has_ended and grant.voided_at is None and grant.effective_at <= now and grant.remaining > 0


def kept_for_holds(
    ended: Iterable[CreditGrant], holds: Iterable[tuple[datetime, int]], *, until: datetime | None = None
) -> dict[UUID, int]:
    """Return per ended grant how much of what it has left the open holds (reserved at, amount) may need.

    A hold counts for a grant if it was reserved before the grant's end (`until`, or its expiry), and only once over
    all grants: together they keep no more than these holds have.
    """
    # The latest holds first: earlier ones are eligible for more grants.
    latest_first = sorted(holds, reverse=True)
    need = [amount for _, amount in latest_first]
    kept: dict[UUID, int] = {}
    for grant in sorted(ended, key=burn_order):
        end = until or grant.expires_at or _NEVER
        left = grant.remaining
        for position, (reserved_at, _) in enumerate(latest_first):
            if reserved_at < end:
                part = min(left, need[position])
                need[position] -= part
                left -= part
        kept[grant.pk] = grant.remaining - left
    return kept
