"""The admin's first page: what was used, by day and model, and what runs now."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest
from django.template.defaultfilters import pluralize
from django.utils.timesince import timesince

from base.units import format_credits
from billing.admin.dashboard import overview
from billing.models import Reconciliation
from billing.selectors.reconciliation import last_reconciliation
from gateway.runtime.data_plane import live_of
from gateway.runtime.observed import noted_results
from routing.models import Deployment
from tenancy.models import Tenant

DAYS = 30
MOST_FINDINGS = 20
_OPTIONS = {
    "maintainAspectRatio": False,
    "scales": {"x": {"stacked": True}, "y": {"stacked": True, "beginAtZero": True}},
    "plugins": {"legend": {"display": True, "position": "bottom"}},
}


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return the page's context with the tiles, failing checks, the chart and its table that this operator may see."""
    may = request.user.has_perm
    tiles: list[tuple[str, str]] = []
    if may("billing.view_usagerecord"):
        sums, chart = overview(DAYS)
        tiles += [
            ("Credits charged", format_credits(sums.charge, separator=",")),
            ("Requests", f"{sums.requests:,}"),
            ("Tokens", f"{sums.tokens:,}"),
            ("Credits held now", f"{format_credits(sums.held, separator=',')} by {sums.open_holds} requests"),
        ]
        context.update(chart=json.dumps(chart), chart_options=json.dumps(_OPTIONS), table=_table(chart))
    if may("gateway.view_tenant"):
        tiles.append(("Active tenants", f"{Tenant.objects.filter(is_active=True).count():,}"))
    if may("routing.view_deployment"):
        states = live_of(request).deployment_states()
        ready = "–" if states is None else str(sum(state.is_ready for state in states.values()))
        tiles.append(("Deployments ready", f"{ready} of {Deployment.objects.filter(is_active=True).count()}"))
        failing = _failing()
        tiles.append(("Checks", f"{len(failing['rows'])} to mend" if failing["rows"] else "fine"))
        context.update(failing=failing if failing["rows"] else None)
    if may("billing.view_reconciliation"):
        checked = last_reconciliation()
        tiles.append(("Books", _verdict(checked)))
        context.update(findings=_findings(checked) if checked is not None and checked.found else None)
    context.update(tiles=[{"name": name, "value": value} for name, value in tiles], days=DAYS)
    return context


def _failing() -> dict[str, Any]:
    """Return what the checks of the periodic work found last that is to be mended, the worst first, as a table."""
    found = sorted((one for one in noted_results() if not one.is_fine), key=lambda one: one.severity)
    rows = [
        [one.severity, " ".join(filter(None, (one.name, finding.subject))), finding.text, finding.mend]
        for one in found
        for finding in one.findings
        if finding.mend
    ]
    return {"headers": ["Severity", "Check", "Finding", "Way out"], "rows": rows}


def _verdict(checked: Reconciliation | None) -> str:
    if checked is None or checked.finished_at is None:
        return "not checked yet"
    found = f"{checked.found:,} finding{pluralize(checked.found)}" if checked.found else "in order"
    return f"{found}, checked {timesince(checked.finished_at, depth=1)} ago"


def _findings(checked: Reconciliation) -> dict[str, Any]:
    """Return the first contradictions that the last check of the books found, as a table."""
    names = ("check", "subject", "detail")
    rows = [[one[name] for name in names] for one in checked.findings[:MOST_FINDINGS]]
    return {"headers": ["Check", "Row", "What differs"], "rows": rows}


def _table(chart: dict[str, Any]) -> dict[str, Any]:
    """Return the chart as a table, the days on which something was used, newest first."""
    series = chart["datasets"]
    days = list(zip(chart["labels"], *(row["data"] for row in series), strict=True))
    rows = [[day, *(f"{value:,.2f}" for value in values)] for day, *values in reversed(days) if any(values)]
    return {"headers": ["Day (UTC)", *(row["label"] for row in series)], "rows": rows}
