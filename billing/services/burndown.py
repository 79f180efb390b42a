"""The order in which grants are burnt down."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from billing.models import CreditGrant

_LAST_KIND = CreditGrant.Kind.PAID
_NEVER = datetime.max.replace(tzinfo=UTC)


def burn_order(grant: CreditGrant) -> tuple[int, datetime, bool, datetime, UUID]:
    """Return the sort key: priority, expiry (never last), anything before paid, age, id."""
    return (
        grant.priority,
        grant.expires_at or _NEVER,
        grant.kind == _LAST_KIND,
        grant.effective_at,
        grant.pk,
    )


def is_live(grant: CreditGrant, now: datetime) -> bool:
    """True when a hold made now may be paid from the grant."""
    has_ended = grant.expires_at is not None and grant.expires_at <= now
    return not has_ended and grant.voided_at is None and grant.remaining > 0
