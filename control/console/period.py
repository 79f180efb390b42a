"""The filters of a usage page (days, key, model, measure), from the address's query, so that a view can be shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from control.console.tenancy import Place

DAYS = (7, 30, 90)
MEASURES = {"credits": "charge", "tokens": "tokens", "requests": "requests"}
DEFAULT_DAYS = 30
DEFAULT_MEASURE = "credits"


@dataclass(frozen=True, slots=True)
class Asked:
    """The period ends today, in UTC; no key and no model mean all."""

    place: Place
    days: int
    last: date
    api_key: UUID | None
    model: str
    measure: str
    before: UUID | None = None

    @property
    def first(self) -> date:
        """The first day of the period."""
        return self.last - timedelta(days=self.days - 1)

    @property
    def is_filtered(self) -> bool:
        """Whether only a part of the tenant's usage is asked for."""
        return self.api_key is not None or bool(self.model)

    def query(self, **changes: object) -> str:
        """Return the address's query with `changes`, without what is the default."""
        one = replace(self, **changes)  # type: ignore[arg-type] # the names are this class's own
        values = {
            **self.place.name,
            "days": "" if one.days == DEFAULT_DAYS else str(one.days),
            "key": str(one.api_key or ""),
            "model": one.model,
            "measure": "" if one.measure == DEFAULT_MEASURE else one.measure,
            "before": str(one.before or ""),
        }
        return "?" + urlencode({name: value for name, value in values.items() if value})


def asked_of(place: Place, data: QueryDict) -> Asked:
    """Read the query; what makes no sense counts as not given."""
    days = data.get("days", "")
    measure = data.get("measure", "")
    return Asked(
        place=place,
        days=int(days) if days in map(str, DAYS) else DEFAULT_DAYS,
        last=datetime.now(tz=UTC).date(),
        api_key=_uuid(data.get("key", "")),
        model="" if "\0" in data.get("model", "") else data.get("model", "")[:120],
        measure=measure if measure in MEASURES else DEFAULT_MEASURE,
        before=_uuid(data.get("before", "")),
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
