"""Requests that were counted: sums by day, records with their last revision, what is still held or estimated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import TruncDate, TruncDay, TruncHour, TruncMonth

from base.ids import day_of, first_at, moment_of
from billing.models import Hold, KeyTotal, OutboxEvent, UsageDay, UsageRecord, UsageRollup
from billing.seals import archived


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Usage of one UTC day, in tokens and µcr; model, api_key and project are None where sums aren't split by them.

    Sums over all tenants also have the operator's `cost` of requests whose deployment was calibrated, and those
    requests' charge, `costed`.
    """

    day: date
    model: str | None
    api_key: UUID | None
    project: UUID | None
    requests: int
    input_tokens: int
    cache_read_tokens: int
    output_tokens: int
    charge: int
    cost: int = 0
    costed: int = 0


_GROUPS = ("model", "api_key", "project")
_SHORT = timedelta(minutes=10, seconds=5)
_SUMS = ("requests", "input_tokens", "cache_read_tokens", "output_tokens", "charge")


Unit = Literal["hour", "day", "month"]
_TRUNCATED = {"hour": TruncHour, "day": TruncDay, "month": TruncMonth}


@dataclass(frozen=True, slots=True)
class TimeSum:
    """Usage from the moment `at` on, in tokens and µcr, of one `group`: its values of the columns of the split."""

    at: datetime
    group: tuple[Any, ...]
    requests: int
    input_tokens: int
    cache_read_tokens: int
    output_tokens: int
    charge: int

    def plus(self, other: TimeSum) -> TimeSum:
        """Return the sum, from this one's moment on."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in _SUMS})


def usage_by(
    unit: Unit,
    tenant: UUID,
    since: datetime,
    until: datetime,
    *,
    by: Sequence[str] = (),
    models: Collection[str] | None = None,
    projects: Collection[UUID] = (),
    api_keys: Collection[UUID] = (),
) -> list[TimeSum]:
    """Return sums per unit of UTC from `since` to before `until`, split by any of model, api_key and project, in this
    order.

    `models` are those that count, None counts all; so does no project or key.
    """
    rows = UsageRollup.objects.filter(tenant=tenant, hour__gte=since, hour__lt=until)
    if models is not None:
        rows = rows.filter(model__in=models)
    if projects:
        rows = rows.filter(project__in=projects)
    if api_keys:
        rows = rows.filter(api_key__in=api_keys)
    rows = rows.annotate(at=_TRUNCATED[unit]("hour", tzinfo=UTC))
    sums = rows.values("at", *by).annotate(**{f"sum_{name}": Sum(name) for name in _SUMS}).order_by("at", *by)
    return [
        TimeSum(row["at"], tuple(row[name] for name in by), *(int(row[f"sum_{name}"]) for name in _SUMS))
        for row in sums
    ]


MOST_RECORDED = 20_000
"""Records that are looked at for what the sums by hour don't tell apart: endpoints, and members in the chat."""


def recorded_by(
    unit: Unit,
    tenant: UUID,
    since: datetime,
    until: datetime,
    *,
    by: Sequence[str],
    matching: Q | None = None,
) -> tuple[list[TimeSum], datetime | None]:
    """Return sums as `usage_by` does, of records that match and split by any of their columns: of the newest
    `MOST_RECORDED` requests of the time. With it the moment from which on these are all, None where none is left out.
    """
    first, last = first_at(since), first_at(until)
    within = Q(tenant=tenant, day__gte=day_of(first), day__lte=until.date(), request__gte=first, request__lt=last)
    newest = UsageRecord.objects.filter(within).order_by("-day", "-request").values_list("request", flat=True)
    reached = next(iter(newest[MOST_RECORDED : MOST_RECORDED + 1]), None)
    rows = UsageRecord.objects.latest_revisions().filter(within, matching or Q())
    if reached is not None:
        rows = rows.filter(day__gte=day_of(reached), request__gt=reached)
    # A request's day is that of its id, as the hour of the sums is.
    units = {"hour": TruncHour("reserved_at", tzinfo=UTC), "day": F("day"), "month": TruncMonth("day")}
    at: Any = units[unit]
    sums: dict[str, Any] = {f"sum_{name}": Sum(name) for name in _SUMS[1:]} | {"sum_requests": Count("pk")}
    sums["sum_output_tokens"] = Sum(F("output_tokens") + F("reasoning_tokens"))
    found = rows.annotate(at=at).values("at", *by).annotate(**sums).order_by("at", *by)
    return [
        TimeSum(
            row["at"] if isinstance(row["at"], datetime) else _midnight(row["at"]),
            tuple(row[name] for name in by),
            *(int(row[f"sum_{name}"]) for name in _SUMS),
        )
        for row in found
    ], None if reached is None else moment_of(reached)


def usage_of_all(first: date, last: date) -> list[UsageSum]:
    """Return sums over all tenants per UTC day from `first` to `last`, both included, and model."""
    days = UsageDay.objects.filter(day__gte=first, day__lte=last).order_by("day", "model")
    return [
        UsageSum(
            one.day,
            one.model,
            api_key=None,
            project=None,
            requests=one.requests,
            input_tokens=one.input_tokens,
            cache_read_tokens=one.cache_read_tokens,
            output_tokens=one.output_tokens,
            charge=one.charge,
            cost=one.cost,
            costed=one.costed,
        )
        for one in days
    ]


def models_since(first: date) -> list[str]:
    """Return the models that were used since that UTC day, by name."""
    return list(UsageDay.objects.filter(day__gte=first).order_by("model").values_list("model", flat=True).distinct())


def usage_by_day(
    tenant: UUID,
    first: date,
    last: date,
    *,
    by: Collection[str] = (),
    project: UUID | None = None,
    api_key: UUID | None = None,
    model: str = "",
) -> list[UsageSum]:
    """Return sums per UTC day from `first` to `last`, both included, split by any of model, api_key and project.

    Summed from the hourly rollups, which lag by seconds. ValueError for an unknown `by`.
    """
    unknown = set(by) - set(_GROUPS)
    if unknown:
        raise ValueError(f"by: {min(unknown)!r} is none of {', '.join(_GROUPS)}")
    span = {"hour__gte": _midnight(first), "hour__lt": _midnight(last + timedelta(days=1))}
    rows = UsageRollup.objects.filter(tenant=tenant, **span)
    if project is not None:
        rows = rows.filter(project=project)
    if api_key is not None:
        rows = rows.filter(api_key=api_key)
    if model:
        rows = rows.filter(model=model)
    groups = [name for name in _GROUPS if name in by]
    summed = (
        rows.annotate(day=TruncDate("hour", tzinfo=UTC))
        .values("day", *groups)
        .annotate(**{f"sum_{name}": Sum(name) for name in _SUMS})
        .order_by("day", *groups)
    )
    return [
        UsageSum(
            day=row["day"],
            model=row.get("model"),
            api_key=row.get("api_key"),
            project=row.get("project"),
            **{name: int(row[f"sum_{name}"]) for name in _SUMS},
        )
        for row in summed
    ]


def charges_by_day(tenants: Collection[UUID], first: date, last: date) -> dict[UUID, dict[date, int]]:
    """Return the µcr that each of the tenants was charged per UTC day from `first` to `last`, both included; one
    query.
    """
    days = _charged(tenants, first, last).annotate(day=TruncDate("hour", tzinfo=UTC)).values_list("tenant", "day")
    found: dict[UUID, dict[date, int]] = {}
    for tenant, day, charge in days.annotate(sum=Sum("charge")).order_by():
        found.setdefault(tenant, {})[day] = int(charge)
    return found


def charges_of(tenants: Collection[UUID], first: date, last: date) -> dict[UUID, int]:
    """Return the µcr that each of the tenants was charged in these UTC days; one query."""
    sums = _charged(tenants, first, last).values_list("tenant").annotate(sum=Sum("charge")).order_by()
    return {tenant: int(charge) for tenant, charge in sums}


def _charged(tenants: Collection[UUID], first: date, last: date) -> QuerySet[UsageRollup]:
    span = {"hour__gte": _midnight(first), "hour__lt": _midnight(last + timedelta(days=1))}
    return UsageRollup.objects.filter(tenant__in=tenants, **span)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def charges_of_key(tenant: UUID, api_key: UUID) -> tuple[int, int, int, int]:
    """Return the µcr that the key was charged in all, today, this week and this month of UTC; two queries, which read
    the sums of some weeks.
    """
    total = KeyTotal.objects.filter(pk=api_key).first()
    until, before = (_midnight(date.min), 0) if total is None else (total.until, total.charge)
    today = _midnight(datetime.now(tz=UTC).date())
    begins = today, today - timedelta(days=today.weekday()), today.replace(day=1)
    sums = {f"since_{n}": Sum("charge", filter=Q(hour__gte=begin)) for n, begin in enumerate(begins)}
    rows = UsageRollup.objects.filter(tenant=tenant, api_key=api_key, hour__gte=min(until, *begins))
    row = rows.aggregate(since=Sum("charge", filter=Q(hour__gte=until)), **sums)
    since, day, week, month = (int(one or 0) for one in row.values())
    return before + since, day, week, month


def recent_usage(
    tenant: UUID,
    *,
    limit: int = 50,
    before: UUID | None = None,
    project: UUID | None = None,
    api_key: UUID | None = None,
    model: str = "",
) -> Sequence[UsageRecord]:
    """Return the tenant's latest requests, newest first, each with its last revision, at most `limit`, below request id
    `before`.
    """
    rows = UsageRecord.objects.latest_revisions().filter(tenant=tenant)
    if before is not None:
        rows = rows.filter(
            day__lte=day_of(before), request__lt=before
        )  # `day` lets the index find the start of the page
    if project is not None:
        rows = rows.filter(project=project)
    if api_key is not None:
        rows = rows.filter(api_key=api_key)
    if model:
        rows = rows.filter(model=model)
    return list(rows.order_by("-day", "-request")[:limit])


@dataclass(frozen=True, slots=True)
class Recent:
    """A request that ran lately, of any tenant; `broke` where we failed and it cost nothing."""

    at: datetime
    deployment: UUID
    ttft_ms: int | None
    duration_ms: int | None
    broke: bool
    input_tokens: int
    cached_tokens: int
    output_tokens: int


MOST_RECENT = 2000


def recent_of_all(since: datetime) -> list[Recent]:
    """Return the requests since then, newest first, at most `MOST_RECENT`: a walk along the index of days and
    requests.
    """
    first = first_at(since)
    rows = UsageRecord.objects.filter(day__gte=day_of(first), request__gte=first, revision=0)
    columns = ("request", "deployment", "ttft_ms", "duration_ms", "waived", "input_tokens", "cache_read_tokens")
    found = rows.order_by("-day", "-request").values_list(*columns, F("output_tokens") + F("reasoning_tokens"))
    return [Recent(moment_of(request), *rest) for request, *rest in found[:MOST_RECENT]]


def used_since(tenant: UUID, moment: datetime) -> tuple[int, int]:
    """Return how many requests the tenant has made since `moment`, and what they cost in µcr.

    From records where that is within the last ten minutes, else from the sums of the hours since.
    """
    if datetime.now(tz=UTC) - moment > _SHORT:
        hour = moment.replace(minute=0, second=0, microsecond=0)
        rows: Any = UsageRollup.objects.filter(tenant=tenant, hour__gte=hour)
        found = rows.aggregate(requests=Sum("requests"), charge=Sum("charge"))
    else:
        first = first_at(moment)
        rows = UsageRecord.objects.latest_revisions().filter(tenant=tenant, day__gte=day_of(first), request__gte=first)
        found = rows.aggregate(requests=Count("id"), charge=Sum("charge"))
    return int(found["requests"] or 0), int(found["charge"] or 0)


def record_of(request_id: UUID, tenant: UUID) -> UsageRecord | None:
    """Return the last revision of the tenant's usage record of one request, from the archive where it is there; None
    while it runs, or if it isn't theirs. Raises ArchiveMissingError.
    """
    found = UsageRecord.objects.filter(day=day_of(request_id), request=request_id, tenant=tenant)
    return found.order_by("-revision").first() or archived.record_of(tenant, request_id)


def waits_since() -> datetime | None:
    """Return when the oldest usage was booked that the sums don't have yet; None when they have all."""
    return OutboxEvent.objects.order_by("id").values_list("created_at", flat=True).first()


def hold_of(request_id: UUID, tenant: UUID) -> Hold | None:
    """Return the open hold of the tenant's request, None when there is none."""
    return Hold.objects.filter(pk=request_id, tenant=tenant).first()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latest revision of a usage record that isn't exact: with what correcting it needs. `charge` and `held` are
    µcr.
    """

    request: UUID
    wallet: UUID
    deployment: UUID
    card_version: UUID
    multiplier_bp: int
    charge: int
    held: int


def estimates_since(moment: datetime, *, after: UUID | None = None, limit: int = 100) -> list[Estimate]:
    """Return the estimates of requests made since `moment`, oldest first, at most `limit`; `after` pages by request.

    Walks a partial index from `moment` on, so it costs no more as records pile up.
    """
    first = first_at(moment)
    found = UsageRecord.objects.latest_revisions().filter(exact=False, day__gte=day_of(first), request__gte=first)
    if after is not None:
        found = found.filter(day__gte=day_of(after), request__gt=after)
    columns = ("request", "wallet", "deployment", "card_version", "multiplier_bp", "charge", "held")
    return [Estimate(*row) for row in found.order_by("day", "request").values_list(*columns)[:limit]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens answers had: of so many requests half had at most `p50`, nine in ten at most `p90`."""

    requests: int
    p50: int
    p90: int


def usual_lengths(tenant: UUID | None = None) -> dict[str, Lengths]:
    """Return the lengths of the answers of the tenant's latest requests, or of everybody's, by model: of `MOST_RECENT`
    requests at most, a walk along an index. Requests that failed or used nothing don't count.
    """
    rows = UsageRecord.objects.all() if tenant is None else UsageRecord.objects.filter(tenant=tenant)
    columns = ("model", "revision", "waived", "input_tokens", "cache_read_tokens", "output_tokens", "reasoning_tokens")
    outputs: dict[str, list[int]] = {}
    for model, revision, waived, read, cached, *written in rows.order_by("-day", "-request").values_list(*columns)[
        :MOST_RECENT
    ]:
        if not revision and not waived and read + cached:
            outputs.setdefault(model, []).append(sum(written))
    return {model: _lengths(sorted(found)) for model, found in outputs.items()}


def _lengths(found: Sequence[int]) -> Lengths:
    def at(percent: int) -> int:
        return found[-(-len(found) * percent // 100) - 1]

    return Lengths(len(found), at(50), at(90))
