"""A tenant's refused requests in a period, by reason, and their share of all its requests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from uuid import UUID

from django.db.models import Max, Sum

from control.console.period import Asked
from gateway.runtime.models import RefusalCount, in_words


@dataclass(frozen=True, slots=True)
class RefusalLine:
    """One reason: how often, when last, and that request's id."""

    reason: str
    status: int
    count: int
    last_at: datetime
    last_request: UUID


def refusals_of(asked: Asked) -> list[RefusalLine]:
    """Return the reasons for which the tenant was refused in the period, the most frequent first; two queries."""
    first = datetime.combine(asked.first, time(), tzinfo=UTC)
    after = datetime.combine(asked.last + timedelta(days=1), time(), tzinfo=UTC)
    rows = RefusalCount.objects.of(asked.place.tenant).filter(minute__gte=first, minute__lt=after)
    if asked.api_key is not None:
        rows = rows.filter(api_key=asked.api_key)
    if asked.model:
        rows = rows.filter(model=asked.model)
    sums = list(rows.order_by().values("status", "code").annotate(times=Sum("count"), last=Max("last_at")))
    lasts = rows.filter(last_at__in=[row["last"] for row in sums]).values_list("code", "last_at", "last_request")
    requests = {(code, at): request for code, at, request in lasts}
    lines = [
        RefusalLine(in_words(row["code"]), row["status"], row["times"], row["last"], requests[row["code"], row["last"]])
        for row in sums
    ]
    return sorted(lines, key=lambda line: (-line.count, line.reason))


def error_rate(refused: int, answered: int) -> str:
    """Return how many of a hundred requests were refused, never rounded to nothing; "–" without any."""
    if not refused + answered:
        return "–"
    share = 100 * refused / (refused + answered)
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %" if share else "0 %"
