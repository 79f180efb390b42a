"""Usage records that are estimates: which might still be corrected, for whoever can ask what really ran."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef

from billing.ids import day_of
from billing.models import UsageRecord


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latest revision of a usage record that isn't exact: everything that correcting it takes."""

    request: UUID
    wallet: UUID
    deployment: UUID
    card_version: UUID
    multiplier_bp: int
    charge: int


def estimates_since(moment: datetime, *, after: UUID | None = None, limit: int = 100) -> list[Estimate]:
    """Return the estimates of requests made since `moment`, oldest first, at most `limit`; `after` pages by request.

    Walks a partial index from `moment` on, so it costs no more as records pile up.
    """
    first = _first_of(moment)
    later = UsageRecord.objects.filter(
        day=OuterRef("day"), request=OuterRef("request"), revision__gt=OuterRef("revision")
    )
    found = UsageRecord.objects.filter(~Exists(later), exact=False, day__gte=day_of(first), request__gte=first)
    if after is not None:
        found = found.filter(day__gte=day_of(after), request__gt=after)
    columns = ("request", "wallet", "deployment", "card_version", "multiplier_bp", "charge")
    return [Estimate(*row) for row in found.order_by("day", "request").values_list(*columns)[:limit]]


def _first_of(moment: datetime) -> UUID:
    """Return the least id that a request made at `moment` can have."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
