"""Refused requests as pages ask for them: those that are kept whole, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Trunc

from base import clock
from base.ids import moment_of
from billing.selectors.requests import Unit, Wanted
from gateway.runtime.models import RefusalCount, RefusedRequest, in_words

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Reason:
    """The number of requests refused for one reason."""

    status: int
    code: str
    count: int

    @property
    def words(self) -> str:
        """The code in words."""
        return in_words(self.code)


def refused_of(wanted: Wanted, limit: int, statuses: Iterable[int] = ()) -> list[RefusedRequest]:
    """Return at most `limit` refused requests of the page; of the `statuses`, where there are any."""
    if wanted.is_of_records or wanted.deployment:
        return []
    return list(wanted.page_of(_matching(RefusedRequest.objects.unscoped(), wanted, statuses))[:limit])


def refusals_by(unit: Unit, wanted: Wanted, statuses: Iterable[int] = ()) -> dict[datetime, int]:
    """Return how many requests were refused by minute, hour or UTC day: all of them, but of one person those that are
    kept whole.
    """
    if wanted.is_of_records or wanted.deployment:
        return {}
    name, how_many = "minute", Sum("count")
    rows: QuerySet[Any] = RefusalCount.objects.unscoped()
    if wanted.user is not None:
        name, how_many, rows = "at", Count("pk"), RefusedRequest.objects.unscoped()  # type: ignore[assignment]
    rows = _matching(rows, wanted, statuses).filter(**{f"{name}__gte": wanted.since - _MINUTE})
    if wanted.until is not None:
        rows = rows.filter(**{f"{name}__lt": wanted.until})
    groups = rows.order_by().annotate(bucket=Trunc(name, unit, tzinfo=UTC)).values("bucket").annotate(n=how_many)
    return dict(groups.values_list("bucket", "n"))


def refused_at(request_id: UUID, tenant: UUID | None) -> RefusedRequest | None:
    """Return a refused request, a tenant's or with None anybody's; None where it wasn't kept."""
    found = RefusedRequest.objects.unscoped().filter(pk=request_id)
    return (found if tenant is None else found.filter(tenant=tenant)).first()


def reasons_about(request_id: UUID, tenant: UUID) -> list[Reason]:
    """Return for what a tenant's requests were refused in the minute of a request and the next, most often first: what
    is left of one that wasn't kept whole.
    """
    minute = moment_of(request_id).replace(second=0, microsecond=0)
    if minute > clock.now() + _MINUTE:
        return []  # an id of nothing
    rows = RefusalCount.objects.unscoped().filter(tenant=tenant, minute__in=[minute, minute + _MINUTE])
    found: Counter[tuple[int, str]] = Counter()
    for status, code, count in rows.values_list("status", "code", "count"):
        found[status, code] += count
    return [Reason(status, code, count) for (status, code), count in found.most_common()]


def _matching(rows: QuerySet[Any], wanted: Wanted, statuses: Iterable[int]) -> QuerySet[Any]:
    names = {"tenant": wanted.tenant, "api_key": wanted.api_key, "model": wanted.model, "code": wanted.end}
    if wanted.user is not None:
        names["user"] = wanted.user
    rows = rows.filter(**{name: value for name, value in names.items() if value})
    of_status = Q()
    for status in statuses:  # 4 and 5 stand for all of a hundred
        of_status |= Q(status=status) if status >= 100 else Q(status__gte=100 * status, status__lt=100 * status + 100)
    return rows.filter(of_status)
