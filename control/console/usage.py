"""The usage page: what was spent on what, the latest requests, and the keys; and the days as CSV."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from base.units import format_credits
from billing.models import UsageRecord
from billing.selectors.usage import UsageSum, recent_usage, usage_by_day
from control.console.catalogue import active_subscription
from control.console.chat import next_grant
from control.console.keys import KeyLine, key_lines
from control.console.period import DAYS, MEASURES, Asked, asked_of
from control.console.refusals import error_rate, refusals_of
from control.console.tenancy import Place, tenant_page
from control.screens.charts import Chart, stacked
from control.screens.figures import cell, grouped, short, show_charge, show_credits
from control.screens.key_forms import NewKeyForm

RECENT = 25


@require_safe
@tenant_page
def usage(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant's usage and keys; nothing here needs a script."""
    asked = asked_of(place, request.GET)
    rows = _rows(asked)
    lines = key_lines(place)
    requests, older = _recent(asked, lines)
    totals = totals_of(rows)
    refusals = refusals_of(asked)
    refused = sum(line.count for line in refusals)
    subscription = active_subscription(place.tenant)
    grant, granted_at = next_grant(subscription)
    context = place.context(
        page="usage",
        asked=asked,
        chart=_chart(rows, asked),
        totals=totals,
        refusals=refusals,
        refused=refused,
        error_rate=error_rate(refused, totals.requests),
        is_new=not rows and not requests and not refusals and not asked.is_filtered,
        subscription=subscription,
        next_grant=grant,
        next_grant_at=granted_at,
        periods=[(days, asked.query(days=days, before=None), days == asked.days) for days in DAYS],
        measures=[(name, asked.query(measure=name), name == asked.measure) for name in MEASURES],
        models=sorted({row.model or "" for row in rows} | ({asked.model} if asked.model else set())),
        unfiltered=asked.query(api_key=None, model="", before=None),
        export=reverse("console-usage-export") + asked.query(before=None, measure="credits"),
        requests=requests,
        older=older,
        newest=asked.query(before=None),
        lines=lines,
        form=NewKeyForm(access=place.access),
        base_url=request.build_absolute_uri("/v1"),
    )
    return render(request, "console/usage.html", context)


@require_safe
@tenant_page
def export(request: HttpRequest, place: Place) -> HttpResponse:
    """Answer the period's sums per UTC day, model and key as CSV; credits are exact."""
    asked = asked_of(place, request.GET)
    names = {line.key.id: line.key.name for line in key_lines(place)}
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"usage-{place.tenant.slug}-{asked.first}-{asked.last}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    out = csv.writer(response)
    out.writerow(
        ["day", "model", "api_key", "key_name", "requests", "input_tokens", "cached_tokens", "output_tokens", "credits"]
    )
    for row in _rows(asked, by=("model", "api_key")):
        out.writerow(
            [
                row.day.isoformat(),
                cell(row.model or ""),
                row.api_key or "",
                cell(names.get(row.api_key, "") if row.api_key else "chat"),
                row.requests,
                row.input_tokens,
                row.cache_read_tokens,
                row.output_tokens,
                format_credits(row.charge),
            ]
        )
    return response


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of a period; `charge` in µcr."""

    charge: int
    requests: int
    input_tokens: int
    cache_read_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.cache_read_tokens + self.output_tokens

    @property
    def cached_share(self) -> int:
        """How many of a hundred prompt tokens came from the prefix cache."""
        prompt = self.input_tokens + self.cache_read_tokens
        return self.cache_read_tokens * 100 // prompt if prompt else 0


def totals_of(rows: Sequence[UsageSum]) -> Totals:
    """Return the sums over `rows`."""
    return Totals(
        charge=sum(row.charge for row in rows),
        requests=sum(row.requests for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        cache_read_tokens=sum(row.cache_read_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
    )


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request with the name of its key, empty for what was asked in the chat."""

    record: UsageRecord
    key_name: str


_VALUES: dict[str, Callable[[UsageSum], int]] = {
    "credits": lambda row: row.charge,
    "requests": lambda row: row.requests,
    "tokens": lambda row: row.input_tokens + row.cache_read_tokens + row.output_tokens,
}


def _chart(rows: Sequence[UsageSum], asked: Asked) -> Chart:
    """Return the measure by UTC day and model; a day leads to its requests."""
    days = [asked.first + timedelta(days=number) for number in range(asked.days)]
    names = {day: f"{day.day} {day:%b}" for day in days}
    cells: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        cells[names[row.day], row.model or ""] += _VALUES[asked.measure](row)
    is_credits = asked.measure == "credits"
    show = show_charge if is_credits else grouped
    return stacked(cells, list(names.values()), show=show, axis=show_credits if is_credits else short, unit="Day (UTC)")


def _rows(asked: Asked, by: Sequence[str] = ("model",)) -> list[UsageSum]:
    return usage_by_day(asked.place.tenant.id, asked.first, asked.last, by=by, api_key=asked.api_key, model=asked.model)


def _recent(asked: Asked, lines: Sequence[KeyLine]) -> tuple[list[RequestLine], str]:
    """Return a page of the latest requests, and the query of the following page."""
    names = {line.key.id: line.key.name for line in lines}
    found = recent_usage(
        asked.place.tenant.id, limit=RECENT + 1, before=asked.before, api_key=asked.api_key, model=asked.model
    )
    page = [RequestLine(row, names.get(row.api_key, "") if row.api_key else "") for row in found[:RECENT]]
    older = asked.query(before=page[-1].record.request) if len(found) > RECENT else ""
    return page, older
