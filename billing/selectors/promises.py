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


def kept_by(first: date, last: date, *columns: str, **matching: Any) -> Mapping[tuple[Any, ...], Kept]:
    """Return the sums of these UTC days, both included, by columns such as `model` and `version__plan__name`."""
    rows = PromiseDay.objects.filter(day__gte=first, day__lte=last, **matching).order_by(*columns).values_list(*columns)
    sums = rows.annotate(Sum("counted"), Sum("missed"), Sum("credited"))
    return {row[: len(columns)]: Kept(*map(int, row[len(columns) :])) for row in sums}


def kept_in(first: date, last: date, tenant: UUID) -> Kept:
    """Return a tenant's sums of these UTC days, both included."""
    return kept_by(first, last, "tenant", tenant=tenant).get((tenant,), Kept())


def miss_of(request: UUID) -> MissedPromise | None:
    """Return the miss of a request, None where there is none, or its settlement isn't summed yet."""
    return MissedPromise.objects.filter(pk=request).first()
