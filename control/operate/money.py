"""Money: credit sold, given, burnt, expired and waived in a period; by model, plan and tenant; who runs low."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from operator import add
from typing import Any
from uuid import UUID

from django.core.cache import cache
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from base.units import format_credits
from billing.selectors import money as sums
from billing.selectors.money import Granted, Low, TenantSum
from billing.selectors.promises import Kept, kept_by
from billing.selectors.usage import UsageSum, usage_of_all
from control.operate.base import Desk, address_of, operator_page
from control.operate.model_states import Cost, Traffic, cost_of, measured_cost
from control.screens.charts import Chart, Tile, stacked
from control.screens.figures import amount, cell, grouped, share, show_charge, show_credits
from control.screens.tables import Cell, Column, Row, Table
from routing.models import PublicModel
from tenancy.models import Tenant

PERIODS = (7, 30, 90)
DEFAULT_DAYS = 30
FEW = 10  # tenants of a table
SLOW_SECONDS, FRESH_SECONDS = 0.1, 300
"""Sums over all tenants that took longer than the first are kept for the second: they read all tenants' hours."""
TABLES = ("models", "plans", "promises", "tenants", "falling", "low")


@dataclass(frozen=True, slots=True)
class Period:
    """So many days up to today, in UTC."""

    days: int
    last: date

    @property
    def first(self) -> date:
        """Its first day."""
        return self.last - timedelta(days=self.days - 1)

    @property
    def since(self) -> datetime:
        """Its first moment."""
        return datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC)

    @property
    def step(self) -> timedelta:
        """The days of one bar: a week's where days would be too many."""
        return timedelta(days=7 if self.days > 31 else 1)

    @property
    def bars(self) -> list[date]:
        """The first day of each bar."""
        return [self.first + number * self.step for number in range(-(-self.days // self.step.days))]


@dataclass(frozen=True, slots=True)
class PlanSum:
    """A plan's tenants as of today, with the sums of their `TenantSum`s."""

    plan: str
    tenants: int
    requests: int
    charge: int
    cost: int
    costed: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Sums over all tenants as of `at`: by plan, the tenants that burnt most, those that fell most, those that are
    low.
    """

    at: datetime
    plans: list[PlanSum]
    top: list[TenantSum]
    falling: list[TenantSum]
    low: list[Low]
    granted: dict[str, Granted]  # by kind of grant
    names: dict[UUID, tuple[str, str]] = field(default_factory=dict)  # name and slug of those


@require_safe
@operator_page("billing.view_usagerecord", "billing.view_creditgrant")
def money(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the period's credit."""
    period = _period(request)
    rows = usage_of_all(period.first, period.last)
    standing = _standing(period)
    links = [(name, f"{reverse('operate-money-csv', args=[name])}?days={period.days}") for name in TABLES]
    names = standing.names if desk.may("gateway.view_tenant") else {}
    by_model = _by_model(rows)
    costs = _costs(by_model)
    context = desk.context(
        page="money",
        periods=[(days, f"?days={days}", days == period.days) for days in PERIODS],
        period=period,
        tiles=_tiles(period, rows, standing.granted),
        chart=_chart(period, rows),
        models=_models(by_model, costs),
        costs=costs,
        plans=_plans(standing),
        promises=_promises(period),
        top=_tenants("Top tenants", standing.top, names, "Nobody used anything in this period."),
        falling=_tenants("Falling tenants", standing.falling, names, "Nobody used less than in the period before."),
        low=_low(standing.low, names),
        csv=dict(links),
        at=standing.at,
        few=FEW,
        prices=address_of("operate-prices"),
        vouchers=address_of("operate-vouchers") if desk.may("billing.view_voucherbatch") else "",
    )
    return render(request, "operate/money.html", context)


@require_safe
@operator_page("billing.view_usagerecord", "billing.view_creditgrant", "gateway.view_tenant")
def money_csv(request: HttpRequest, desk: Desk, table: str) -> HttpResponse:
    """Answer with all rows of one of the page's tables, of now."""
    if table not in TABLES:
        raise Http404
    period = _period(request)
    out = StringIO()
    csv.writer(out).writerows(_lines(table, period))
    response = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    name = f"money-{table}-{period.first}-{period.last}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _period(request: HttpRequest) -> Period:
    days = request.GET.get("days", "")
    return Period(int(days) if days in map(str, PERIODS) else DEFAULT_DAYS, timezone.now().date())


def _standing(period: Period) -> Standing:
    """Return the sums over all tenants, at most `FRESH_SECONDS` old."""
    key = f"operate.money.costed.{period.days}.{period.last}"
    known = cache.get(key)
    if isinstance(known, Standing):
        return known
    now, began = timezone.now(), time.monotonic()
    found = sums.by_tenant(period.first, period.last)
    top = sorted((one for one in found if one.requests), key=lambda one: (-one.charge, one.tenant))[:FEW]
    falling, low = _falling(found)[:FEW], sums.low_tenants(now, FEW)
    named = {one.tenant for one in (*top, *falling)} | {one.tenant for one in low}
    rows = Tenant.objects.filter(pk__in=named).values_list("pk", "name", "slug")
    names = {pk: (name, slug) for pk, name, slug in rows}
    standing = Standing(now, _by_plan(found), top, falling, low, sums.granted(period.since, now), names)
    if time.monotonic() - began > SLOW_SECONDS:
        cache.set(key, standing, FRESH_SECONDS)
    return standing


def _falling(found: Iterable[TenantSum]) -> list[TenantSum]:
    """Return the tenants that burnt less than before, those first that fell by most credit."""
    return sorted(
        (one for one in found if one.charge < one.before), key=lambda one: (one.charge - one.before, one.tenant)
    )


def _by_plan(found: Iterable[TenantSum]) -> list[PlanSum]:
    """Return the sums by the plan that each tenant has today, those of the most credit first."""
    plans = sums.plans_of_tenants()
    has = Counter(plans.values())
    totals: dict[str, list[int]] = {plan: [0] * 4 for plan in has}
    for one in found:
        if one.requests:
            total = totals.setdefault(plans.get(one.tenant, ""), [0] * 4)
            total[:] = map(add, total, (one.requests, one.charge, one.cost, one.costed))
    rows = [PlanSum(plan, has[plan], *total) for plan, total in totals.items()]
    return sorted(rows, key=lambda row: (-row.charge, row.plan))


def _tiles(period: Period, rows: Sequence[UsageSum], kinds: Mapping[str, Granted]) -> list[Tile]:
    now, until = timezone.now(), timezone.now() + timedelta(days=period.days)
    paid, given = kinds.get("paid"), [one for kind, one in kinds.items() if kind != "paid"]
    waived = sums.waived(period.first, period.last)
    in_days = f"in {period.days} days"
    by = "by plans and promotions"
    if (goodwill := kinds.get("goodwill")) is not None:
        by = f"by plans and promotions, and {format_credits(goodwill.amount, separator=',')} as goodwill"
    sold = ", ".join(f"{total / 100:,.2f} {name}" for name, total in sorted((paid.paid or {} if paid else {}).items()))
    grants = address_of("admin:billing_creditgrant_changelist", kind__exact="paid")
    broken = address_of("admin:billing_usagerecord_changelist", waived__exact=1)
    return [
        Tile("Sold", amount(paid.amount if paid else 0), f"{in_days}{f', for {sold}' if sold else ''}", grants),
        Tile("Given", amount(sum(one.amount for one in given)), f"{in_days}, {by}"),
        Tile("Burnt", amount(sum(row.charge for row in rows)), f"{in_days}, by {grouped(_requests(rows))} requests"),
        Tile("Expired", amount(sums.expired(period.since, now)), f"{in_days}, unused"),
        Tile("Expiring", amount(sums.expiring(now, until)), f"in the next {period.days} days, unless burnt"),
        Tile(
            "Waived",
            amount(waived.foregone),
            f"{in_days}: requests that we broke, {grouped(waived.requests)}, at their price",
            broken if waived.requests else "",
        ),
    ]


def _requests(rows: Iterable[UsageSum]) -> int:
    return sum(row.requests for row in rows)


def _chart(period: Period, rows: Iterable[UsageSum]) -> Chart:
    cells: Counter[tuple[str, str]] = Counter()
    for row in rows:
        bar = period.first + (row.day - period.first) // period.step * period.step
        cells[_label(bar), row.model or ""] += row.charge
    bars = {_label(day): day for day in period.bars}
    requests = address_of("operate-requests")

    def href(label: str) -> str:
        return f"{requests}?since={bars[label]}T00:00:00Z&until={bars[label] + period.step}T00:00:00Z"

    unit, leads = "Day" if period.step.days == 1 else "Week from", href if requests else None
    return stacked(cells, list(bars), show=show_charge, axis=show_credits, href=leads, unit=unit)


def _label(day: date) -> str:
    return f"{day.day} {day:%b}"


def _by_model(rows: Iterable[UsageSum]) -> list[tuple[str, list[int]]]:
    """Return requests, input, cached and output tokens, µcr, cost and the charge of what has one by model, those of the
    most credit first.
    """
    found: dict[str, list[int]] = {}
    for row in rows:
        tokens = (row.input_tokens, row.cache_read_tokens, row.output_tokens)
        one = found.setdefault(row.model or "", [0] * 7)
        one[:] = map(add, one, (row.requests, *tokens, row.charge, row.cost, row.costed))
    return sorted(found.items(), key=lambda item: (-item[1][4], item[0]))


def _costs(found: Sequence[tuple[str, list[int]]]) -> dict[str, Cost]:
    """Return what the models cost the operator, those whose cost was measured or entered."""
    priced = PublicModel.objects.filter(name__in=[model for model, _ in found]).exclude(cost_input=None)
    entered = {model.name: model for model in priced}
    known = {name: cost_of(entered.get(name), Traffic(*figures)) for name, figures in found}
    return {name: cost for name, cost in known.items() if cost is not None}


def _cost_cells(cost: Cost | None) -> list[Any]:
    return [None, "–"] if cost is None else [cost.amount, Cell(cost.margin, title=cost.source)]


_COST = (Column("Cost", "credits"), Column("Margin", "number"))


def _models(found: Sequence[tuple[str, list[int]]], costs: Mapping[str, Cost]) -> Table:
    whole = sum(figures[4] for _, figures in found)
    lines = []
    for model, figures in found:
        own = _cost_cells(costs.get(model)) if costs else []
        lines.append(Row([model, *figures[:5], share(figures[4], whole), _per_million(figures), *own]))
    columns = [
        *(Column("Model", "name"), Column("Requests", "number"), Column("Input", "number"), Column("Cached", "number")),
        *(Column("Output", "number"), Column("Credits", "credits"), Column("Of all", "number")),
        Column("Per million tokens", "credits"),
        *(_COST if costs else ()),
    ]
    return Table("By model", columns, lines, "Nothing was used in this period.")


def _per_million(figures: Sequence[int]) -> int | None:
    tokens = sum(figures[1:4])
    return figures[4] * 1_000_000 // tokens if tokens else None


def _plans(standing: Standing) -> Table:
    whole = sum(one.charge for one in standing.plans)
    has_costs = any(one.cost for one in standing.plans)
    columns = [
        *(Column("Plan", "name"), Column("Tenants", "number"), Column("Requests", "number")),
        *(Column("Credits", "credits"), Column("Of all", "number"), Column("A tenant", "credits")),
        *(_COST if has_costs else ()),
    ]
    lines = [
        Row(
            [
                one.plan or "without a plan",
                *(one.tenants, one.requests, one.charge, share(one.charge, whole)),
                one.charge // one.tenants if one.tenants else None,
                *(_cost_cells(measured_cost(one.cost, one.costed)) if has_costs else ()),
            ]
        )
        for one in standing.plans
    ]
    return Table("By plan", columns, lines, "Nobody has a plan.")


def _promises(period: Period) -> Table:
    """Return how promises were kept, and what misses cost, by plan and model."""
    columns = [
        *(Column("Plan", "name"), Column("Model", "name"), Column("Requests", "number"), Column("Kept", "number")),
        *(Column("Missed", "number"), Column("Given back", "credits")),
    ]
    rows = [
        Row([plan, model, one.counted, share(one.kept, one.counted), one.missed, one.credited])
        for (plan, model), one in _kept(period).items()
    ]
    return Table("Promises", columns, rows)


def _kept(period: Period) -> Mapping[tuple[Any, ...], Kept]:
    return kept_by(period.first, period.last, "version__plan__name", "model")


def _named(tenant: UUID, names: dict[UUID, tuple[str, str]]) -> Cell:
    name, slug = names.get(tenant, (f"…{str(tenant)[-8:]}", ""))
    return Cell(name, address_of("operate-tenant", slug) if slug else "")


def _tenants(title: str, found: Sequence[TenantSum], names: dict[UUID, tuple[str, str]], empty: str) -> Table:
    has_costs = any(one.cost for one in found)
    columns = [
        *(Column("Tenant", "name"), Column("Requests", "number"), Column("Credits", "credits")),
        *(Column("Before", "credits"), Column("Change", "number"), *(_COST if has_costs else ())),
    ]
    lines = []
    for one in found:
        own = _cost_cells(measured_cost(one.cost, one.costed)) if has_costs else ()
        lines.append(Row([_named(one.tenant, names), one.requests, one.charge, one.before, _change(one), *own]))
    return Table(title, columns, lines, empty)


def _change(one: TenantSum) -> str:
    return f"{100 * (one.charge - one.before) / one.before:+,.0f} %" if one.before else "new"


def _low(found: Iterable[Low], names: dict[UUID, tuple[str, str]]) -> Table:
    columns = [
        *(
            Column("Tenant", "name"),
            Column("Left", "balance"),
            Column("Of granted", "credits"),
            Column("Share", "number"),
        ),
    ]
    lines = [Row([_named(one.tenant, names), one.left, one.granted, share(one.left, one.granted)]) for one in found]
    return Table("Below a tenth of their grants", columns, lines, "Nobody has less than a tenth of their grants left.")


def _lines(table: str, period: Period) -> Iterable[list[Any]]:
    """Yield a table's head and all of its rows, names safe from formulas."""
    if table == "models":
        yield ["model", "requests", "input_tokens", "cached_tokens", "output_tokens", "credits", *_COST_HEADS]
        by_model = _by_model(usage_of_all(period.first, period.last))
        costs = _costs(by_model)
        for model, figures in by_model:
            yield [cell(model), *figures[:4], format_credits(figures[4]), *_cost_figures(costs.get(model))]
        return
    if table == "promises":
        yield ["plan", "model", "requests", "missed", "credits_given_back"]
        for (plan, model), kept in _kept(period).items():
            yield [cell(plan), cell(model), kept.counted, kept.missed, format_credits(kept.credited)]
        return
    if table == "low":
        low = sums.low_tenants(timezone.now())
        names = _slugs(one.tenant for one in low)
        yield ["tenant", "slug", "left", "granted"]
        for row in low:
            yield [*names.get(row.tenant, ("", "")), format_credits(row.left), format_credits(row.granted)]
        return
    found = sums.by_tenant(period.first, period.last)
    if table == "plans":
        yield ["plan", "tenants", "requests", "credits", *_COST_HEADS]
        for one in _by_plan(found):
            own = _cost_figures(measured_cost(one.cost, one.costed))
            yield [cell(one.plan), one.tenants, one.requests, format_credits(one.charge), *own]
        return
    rows = _falling(found) if table == "falling" else sorted(found, key=lambda one: (-one.charge, one.tenant))
    names = _slugs(one.tenant for one in rows)
    yield ["tenant", "slug", "requests", "credits", "credits_before", *_COST_HEADS]
    for tenant in rows:
        yield [
            *names.get(tenant.tenant, ("", "")),
            tenant.requests,
            format_credits(tenant.charge),
            format_credits(tenant.before),
            *_cost_figures(measured_cost(tenant.cost, tenant.costed)),
        ]


_COST_HEADS = ("cost", "credits_of_what_has_a_cost", "cost_source")


def _cost_figures(cost: Cost | None) -> list[str]:
    if cost is None:
        return ["", "", ""]
    return [format_credits(cost.amount), format_credits(cost.charge), cost.source]


def _slugs(tenants: Iterable[UUID]) -> dict[UUID, tuple[str, str]]:
    wanted = set(tenants)
    rows = Tenant.objects.values_list("pk", "name", "slug")
    return {pk: (cell(name), slug) for pk, name, slug in rows if pk in wanted}
