"""The list of requests that ran or run, newest first, page by page in both directions; and how many there were when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Trunc

from base.ids import day_of, first_at
from billing.models import Hold, LedgerTransfer, UsageDay, UsageRecord, UsageRollup
from billing.seals import archived

MOST_READ = 20_000
"""Requests that one page or chart looks at where no index leads to those that are asked for."""

Unit = Literal["minute", "hour", "day"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requests of a page: None and empty ask for all. `end` is how they ended, as the record has it. The page is
    the newest one, or the one below the id `before`, or the one above `after`.
    """

    since: datetime
    until: datetime | None = None
    tenant: UUID | None = None
    api_key: UUID | None = None
    user: UUID | None = None
    model: str = ""
    deployment: UUID | None = None
    end: str = ""
    exact: bool | None = None
    least_ms: int | None = None
    before: UUID | None = None
    after: UUID | None = None

    @property
    def is_of_records(self) -> bool:
        """Whether records alone have what is asked for: what runs or was refused has none of it."""
        return self.exact is not None or self.least_ms is not None

    @property
    def is_summed(self) -> bool:
        """Whether sums by key and model tell how many there are."""
        return not (self.is_of_records or self.end or self.user or self.deployment)

    def page_of(self, rows: QuerySet[Any], name: str = "id") -> QuerySet[Any]:
        """Return of `rows`, whose field `name` is a request's id, those of the time and behind the page's begin, in the
        order of the page.
        """
        rows = rows.filter(**{f"{name}__gte": first_at(self.since)})
        if self.until is not None:
            rows = rows.filter(**{f"{name}__lt": first_at(self.until)})
        if self.after is not None:
            return rows.filter(**{f"{name}__gt": self.after}).order_by(name)
        if self.before is not None:
            rows = rows.filter(**{f"{name}__lt": self.before})
        return rows.order_by(f"-{name}")


def reached_by(wanted: Wanted) -> UUID | None:
    """Return the id up to which a page looks, None where an index leads to its requests or there are few."""
    is_led = wanted.is_summed and not wanted.model
    if is_led:
        return None
    ids = _within(wanted).values_list("request", flat=True)[MOST_READ : MOST_READ + 1]
    return next(iter(ids), None)


def records_of(wanted: Wanted, limit: int, reached: UUID | None = None) -> list[UsageRecord]:
    """Return at most `limit` requests of the page with their last revisions; `reached` is what `reached_by` says."""
    return list(_up_to(wanted, reached)[:limit])


def holds_of(wanted: Wanted, limit: int) -> list[Hold]:
    """Return at most `limit` requests of the page that run, or are about to be settled."""
    if wanted.is_of_records or wanted.end:
        return []
    given = _columns(wanted)
    return list(wanted.page_of(Hold.objects.filter(**given))[:limit])


def requests_by(unit: Unit, wanted: Wanted) -> dict[datetime, int]:
    """Return how many requests there were by the minute, hour or UTC day in which each began; the newest `MOST_READ`
    where no sums tell them.
    """
    whole = replace(wanted, before=None, after=None)
    if not wanted.is_summed or unit == "minute":
        reached = next(iter(_within(whole).values_list("request", flat=True)[MOST_READ : MOST_READ + 1]), None)
        rows = _up_to(whole, reached).order_by()
        return _counted(rows, unit, "reserved_at", Count("pk"))
    if unit == "day" and wanted.tenant is None and wanted.api_key is None:
        days = UsageDay.objects.filter(
            day__gte=wanted.since.date(), **({"model": wanted.model} if wanted.model else {})
        )
        if wanted.until is not None:
            days = days.filter(day__lte=(wanted.until - timedelta(microseconds=1)).date())
        found: Counter[datetime] = Counter()
        for day, requests in days.values_list("day", "requests"):
            found[_midnight(day)] += requests
        return found
    names = {"tenant": wanted.tenant, "api_key": wanted.api_key, "model": wanted.model}
    sums = UsageRollup.objects.filter(
        hour__gte=wanted.since - timedelta(minutes=59), **{name: value for name, value in names.items() if value}
    )
    if wanted.until is not None:
        sums = sums.filter(hour__lt=wanted.until)
    return _counted(sums.order_by(), unit, "hour", Sum("requests"))


def record_at(request_id: UUID, tenant: UUID | None) -> UsageRecord | None:
    """Return the last revision of a request's usage record: a tenant's, from the archive too, or with None anybody's of
    the table. Raises ArchiveMissingError.
    """
    found = UsageRecord.objects.filter(day=day_of(request_id), request=request_id)
    if tenant is not None:
        found = found.filter(tenant=tenant)
    record = found.order_by("-revision").first()
    return archived.record_of(tenant, request_id) if record is None and tenant is not None else record


def hold_at(request_id: UUID, tenant: UUID | None) -> Hold | None:
    """Return a request's open hold, a tenant's or with None anybody's; None when there is none."""
    found = Hold.objects.filter(pk=request_id)
    return (found if tenant is None else found.filter(tenant=tenant)).first()


def transfers_at(request_id: UUID) -> list[LedgerTransfer]:
    """Return what was booked for a request, in the order of the booking."""
    found = LedgerTransfer.objects.filter(request=request_id).select_related("debit", "credit", "grant")
    return list(found.order_by("booked_at", "id"))


def _columns(wanted: Wanted) -> dict[str, Any]:
    """Return the columns that holds and records have alike."""
    names = ("tenant", "api_key", "user", "model", "deployment")
    return {name: value for name in names if (value := getattr(wanted, name))}


def _within(wanted: Wanted) -> QuerySet[UsageRecord]:
    """Return the records of the page whose tenant and key are asked for, in its order: an index has both."""
    rows: QuerySet[UsageRecord] = UsageRecord.objects.filter(day__gte=day_of(first_at(wanted.since)))
    if wanted.tenant is not None:
        rows = rows.filter(tenant=wanted.tenant)
    if wanted.api_key is not None:
        rows = rows.filter(api_key=wanted.api_key)
    if wanted.until is not None:
        rows = rows.filter(day__lte=wanted.until.date())
    if wanted.after is not None:
        rows = rows.filter(day__gte=day_of(wanted.after))
    elif wanted.before is not None:
        rows = rows.filter(day__lte=day_of(wanted.before))
    sign = "-" if wanted.after is None else ""
    return wanted.page_of(rows, "request").order_by(f"{sign}day", f"{sign}request")


def _matching(wanted: Wanted) -> QuerySet[UsageRecord]:
    above = wanted.after  # PostgreSQL would read all records up to it for revisions
    bounds = {} if above is None else {"day__gte": day_of(above), "request__gt": above}
    rows: QuerySet[UsageRecord] = _within(wanted).latest_revisions(**bounds)  # type: ignore[attr-defined]
    rows = rows.filter(**_columns(wanted))
    if wanted.end:
        rows = rows.filter(finish=wanted.end)
    if wanted.exact is not None:
        rows = rows.filter(exact=wanted.exact)
    if wanted.least_ms is not None:
        rows = rows.filter(duration_ms__gte=wanted.least_ms)
    return rows


def _up_to(wanted: Wanted, reached: UUID | None) -> QuerySet[UsageRecord]:
    """Return the matching records of the page, up to the id `reached` or all."""
    rows = _matching(wanted)
    if reached is None:
        return rows
    if wanted.after is None:
        return rows.filter(day__gte=day_of(reached), request__gte=reached)
    return rows.filter(day__lte=day_of(reached), request__lte=reached)


def _counted(rows: QuerySet[Any], unit: Unit, name: str, how_many: Any) -> dict[datetime, int]:
    groups = rows.annotate(bucket=Trunc(name, unit, tzinfo=UTC)).values("bucket").annotate(how_many=how_many)
    return dict(groups.values_list("bucket", "how_many"))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)
