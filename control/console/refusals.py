"""A tenant's refused requests in a time, by reason or by bucket and group, and their share of all its requests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, QuerySet, Sum
from django.db.models.functions import TruncDay, TruncHour, TruncMonth

from billing.selectors.usage import Unit
from control.screens.figures import share
from gateway.runtime.models import RefusalCount, RefusedRequest, in_words
from tenancy.models import Tenant

_TRUNCATED = {"hour": TruncHour, "day": TruncDay, "month": TruncMonth}


@dataclass(frozen=True, slots=True)
class RefusalLine:
    """One reason: how often, when last, and that request's id."""

    reason: str
    status: int
    count: int
    last_at: datetime
    last_request: UUID


@dataclass(frozen=True, slots=True)
class Span:
    """A tenant's refusals from `since` to before `until`; `keys` are those that count, None counts all and the chat."""

    tenant: Tenant
    since: datetime
    until: datetime
    keys: Collection[UUID] | None = None
    model: str = ""

    def rows(self) -> QuerySet[RefusalCount]:
        """Return the counts of single minutes."""
        rows = RefusalCount.objects.of(self.tenant).filter(minute__gte=self.since, minute__lt=self.until)
        if self.keys is not None:
            rows = rows.filter(api_key__in=self.keys)
        return rows.filter(model=self.model) if self.model else rows


def refusals_of(span: Span) -> list[RefusalLine]:
    """Return the reasons for which the tenant was refused, the most frequent first; two queries."""
    rows = span.rows()
    sums = list(rows.order_by().values("status", "code").annotate(times=Sum("count"), last=Max("last_at")))
    lasts = rows.filter(last_at__in=[row["last"] for row in sums]).values_list("code", "last_at", "last_request")
    requests = {(code, at): request for code, at, request in lasts} if sums else {}
    lines = [
        RefusalLine(in_words(row["code"]), row["status"], row["times"], row["last"], requests[row["code"], row["last"]])
        for row in sums
    ]
    return sorted(lines, key=lambda line: (-line.count, line.reason))


def refused_by(span: Span, unit: Unit, column: str) -> list[tuple[datetime, Any, int]]:
    """Return how many were refused in each unit of UTC, split by a column: ``model`` or ``api_key``."""
    rows = span.rows().order_by().annotate(at=_TRUNCATED[unit]("minute", tzinfo=UTC))
    return list(rows.values_list("at", column).annotate(times=Sum("count")).values_list("at", column, "times"))


def kept_by(span: Span, unit: Unit, column: str, *, is_chat: bool = False) -> list[tuple[datetime, Any, int]]:
    """Return how many of the refused requests that are kept whole there were in each unit, split by ``endpoint`` or
    ``user``; with `is_chat` those of the chat.
    """
    rows = RefusedRequest.objects.of(span.tenant).filter(at__gte=span.since, at__lt=span.until)
    if is_chat:
        rows = rows.filter(api_key=None)
    if span.keys is not None:
        rows = rows.filter(api_key__in=span.keys)
    if span.model:
        rows = rows.filter(model=span.model)
    rows = rows.order_by().annotate(bucket=_TRUNCATED[unit]("at", tzinfo=UTC))
    return list(rows.values_list("bucket", column).annotate(times=Count("pk")).values_list("bucket", column, "times"))


def error_rate(refused: int, answered: int) -> str:
    """Return how many of a hundred requests were refused, never rounded to nothing; "–" without any."""
    return share(refused, refused + answered)
