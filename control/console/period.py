"""A view of usage as its address says it: measure, group, bucket, range and filters, so that it can be shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from billing.selectors.usage import Unit
from control.console.tenancy import Place

DAYS = {1: "Today", 7: "7 days", 30: "30 days", 90: "90 days", 365: "A year"}
MEASURES = {
    "credits": "Credits",
    "tokens": "Tokens",
    "requests": "Requests",
    "cached": "Cached share",
    "refused": "Refused",
}
GROUPS = {"model": "Model", "key": "Key", "project": "Project", "member": "Member", "endpoint": "Endpoint"}
BUCKETS: dict[Unit, str] = {"hour": "Hours", "day": "Days", "month": "Months"}
DEFAULT_DAYS = 30
MOST_DAYS = 1_098  # three years
MOST_BARS = 100
EARLIEST = date(2000, 1, 1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Asked:
    """The view that is asked for, in days of UTC; a preset's `days` end today. No key, project and so on mean all."""

    place: Place
    first: date
    last: date
    days: int = DEFAULT_DAYS  # 0: from `first` to `last` as they stand in the address
    measure: str = "credits"
    group: str = "model"
    chosen: str = ""  # the bucket that the address names
    model: str = ""
    api_key: UUID | None = None
    project: UUID | None = None
    member: UUID | None = None

    @property
    def since(self) -> datetime:
        """The first moment of the range."""
        return datetime.combine(self.first, time(), tzinfo=UTC)

    @property
    def until(self) -> datetime:
        """The moment at which the range is over."""
        return datetime.combine(self.last + _DAY, time(), tzinfo=UTC)

    @property
    def is_filtered(self) -> bool:
        """Whether only a part of the tenant's usage is asked for."""
        return any((self.model, self.api_key, self.project, self.member))

    @property
    def period(self) -> str:
        """The range in words."""
        if self.days:
            return {1: "today", 365: "in a year"}.get(self.days, f"in {self.days} days")
        return f"from {_day(self.first)} to {_day(self.last)}"

    @property
    def buckets(self) -> list[Unit]:
        """The buckets that give the range no more than MOST_BARS bars."""
        days = (self.last - self.first).days + 1
        fits = {"hour": 24 * days <= MOST_BARS, "day": days <= MOST_BARS, "month": days > 1}
        return [unit for unit in BUCKETS if fits[unit]]

    @property
    def bucket(self) -> Unit:
        """The bucket that is asked for, else the finest with few enough bars to tell them apart."""
        fitting = self.buckets
        named = next((unit for unit in fitting if unit == self.chosen), None)
        return named or ("hour" if self.first == self.last else "day" if "day" in fitting else "month")

    def starts(self) -> Iterator[tuple[datetime, datetime]]:
        """Yield when each bucket begins and when it is over."""
        at = self.since.replace(day=1) if self.bucket == "month" else self.since
        while at < self.until:
            following = self._after(at)
            yield at, following
            at = following

    def _after(self, at: datetime) -> datetime:
        if self.bucket == "month":
            return (at + 31 * _DAY).replace(day=1)
        return at + (_HOUR if self.bucket == "hour" else _DAY)

    def query(self, **changes: Any) -> str:
        """Return the address's query with `changes`, without what is the default."""
        one = replace(self, **changes)
        values = {
            **self.place.name,
            "days": "" if one.days in (0, DEFAULT_DAYS) else one.days,
            "from": "" if one.days else one.first.isoformat(),
            "to": "" if one.days else one.last.isoformat(),
            "measure": "" if one.measure == "credits" else one.measure,
            "group": "" if one.group == "model" else one.group,
            "bucket": one.chosen,
            "model": one.model,
            "key": one.api_key or "",
            "project": one.project or "",
            "member": one.member or "",
        }
        return "?" + urlencode({name: value for name, value in values.items() if value})

    def requests(self, since: datetime, until: datetime, **changes: Any) -> str:
        """Return the address of the requests of a time under the same filters."""
        one = replace(self, **changes)
        values = {
            **self.place.name,
            "since": f"{since:%Y-%m-%dT%H:%M:%SZ}",
            "until": f"{until:%Y-%m-%dT%H:%M:%SZ}",
            "model": one.model,
            "key": one.api_key or "",
            "state": "refused" if one.measure == "refused" else "",
        }
        return "/requests/?" + urlencode({name: value for name, value in values.items() if value}, safe=":")


def asked_of(place: Place, data: QueryDict) -> Asked:
    """Read the query; a value that can't be read counts as not given."""
    today = datetime.now(tz=UTC).date()
    days = data.get("days", "")
    length = int(days) if days in map(str, DAYS) else DEFAULT_DAYS
    first, last = _date(data.get("from", "")), _date(data.get("to", ""))
    if first is not None or last is not None:
        last = min(last or today, today)
        first = min(first or last - timedelta(days=length - 1), last)
        first, length = max(first, last - timedelta(days=MOST_DAYS - 1)), 0
    else:
        first, last = today - timedelta(days=length - 1), today
    measure, group, bucket = (data.get(name, "") for name in ("measure", "group", "bucket"))
    return Asked(
        place=place,
        first=first,
        last=last,
        days=length,
        measure=measure if measure in MEASURES else "credits",
        group=group if group in GROUPS else "model",
        chosen=bucket if bucket in BUCKETS else "",
        model="" if "\0" in data.get("model", "") else data.get("model", "")[:120],
        api_key=_uuid(data.get("key", "")),
        project=_uuid(data.get("project", "")),
        member=_uuid(data.get("member", "")),
    )


def _day(on: date) -> str:
    return f"{on.day} {on:%b %Y}"


def _date(text: str) -> date | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if found >= EARLIEST else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
