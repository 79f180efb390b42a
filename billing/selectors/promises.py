"""How promises of plans were kept over some days, and what misses gave back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from django.db.models import Sum

from billing.models import MissedPromise, PromiseDay


@dataclass(frozen=True, slots=True)
class Kept:
    """Requests for which a promise counted, those that missed it, and the µcr that these were given back."""

    counted: int = 0
    missed: int = 0
    credited: int = 0

    @property
    def kept(self) -> int:
        """The requests that kept it."""
        return self.counted - self.missed


def kept_by(column: str, first: date, last: date, **matching: Any) -> Mapping[str, Kept]:
    """Return the sums of these UTC days, both included, by a column: `model`, or `version__plan__name`."""
    rows = PromiseDay.objects.filter(day__gte=first, day__lte=last, **matching).order_by().values_list(column)
    sums = rows.annotate(Sum("counted"), Sum("missed"), Sum("credited"))
    return {name: Kept(*map(int, found)) for name, *found in sums}


def kept_in(first: date, last: date, tenant: UUID) -> Kept:
    """Return a tenant's sums of these UTC days, both included."""
    return next(iter(kept_by("tenant", first, last, tenant=tenant).values()), Kept())


def miss_of(request: UUID) -> MissedPromise | None:
    """Return the miss of a request, None where there is none, or its settlement isn't summed yet."""
    return MissedPromise.objects.filter(pk=request).first()
