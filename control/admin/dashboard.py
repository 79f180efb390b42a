"""The admin's first page: what was used, by day and model, and what runs now."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.template.defaultfilters import pluralize
from django.utils.safestring import SafeString
from django.utils.timesince import timesince

from base.units import format_credits
from billing.admin.base import table
from billing.admin.dashboard import overview
from billing.models import Reconciliation
from billing.selectors.reconciliation import last_reconciliation
from gateway.runtime.data_plane import live_of
from gateway.runtime.observed import noted_results
from routing.models import Deployment
from tenancy.models import Tenant

DAYS = 30
MOST_FINDINGS = 20


def dashboard(request: HttpRequest) -> dict[str, Any]:
    """Return the tiles, failing checks and credits by day and model that this operator may see."""
    may = request.user.has_perm
    tiles: list[tuple[str, str]] = []
    context: dict[str, Any] = {}
    if may("billing.view_usagerecord"):
        sums, chart = overview(DAYS)
        tiles += [
            ("Credits charged", format_credits(sums.charge, separator=",")),
            ("Requests", f"{sums.requests:,}"),
            ("Tokens", f"{sums.tokens:,}"),
            ("Credits held now", f"{format_credits(sums.held, separator=',')} by {sums.open_holds} requests"),
        ]
        context["days_used"] = _table(chart)
    if may("gateway.view_tenant"):
        tiles.append(("Active tenants", f"{Tenant.objects.filter(is_active=True).count():,}"))
    if may("routing.view_deployment"):
        states = live_of(request).deployment_states()
        ready = "–" if states is None else str(sum(state.is_ready for state in states.values()))
        tiles.append(("Deployments ready", f"{ready} of {Deployment.objects.filter(is_active=True).count()}"))
        failing = _failing()
        tiles.append(("Checks", f"{len(failing)} to mend" if failing else "fine"))
        context["failing"] = table(["Severity", "Check", "Finding", "Way out"], failing, empty="")
    if may("billing.view_reconciliation"):
        checked = last_reconciliation()
        tiles.append(("Books", _verdict(checked)))
        context["findings"] = _findings(checked) if checked is not None and checked.found else ""
    return {**context, "tiles": tiles, "days": DAYS}


def _failing() -> list[list[Any]]:
    """Return what the checks of the periodic work found last that is to be mended, the worst first."""
    found = sorted((one for one in noted_results() if not one.is_fine), key=lambda one: one.severity)
    return [
        [one.severity, " ".join(filter(None, (one.name, finding.subject))), finding.text, finding.mend]
        for one in found
        for finding in one.findings
        if finding.mend
    ]


def _verdict(checked: Reconciliation | None) -> str:
    if checked is None or checked.finished_at is None:
        return "not checked yet"
    found = f"{checked.found:,} finding{pluralize(checked.found)}" if checked.found else "in order"
    return f"{found}, checked {timesince(checked.finished_at, depth=1)} ago"


def _findings(checked: Reconciliation) -> SafeString:
    """Return the first contradictions that the last check of the books found, as a table."""
    names = ("check", "subject", "detail")
    rows = [[one[name] for name in names] for one in checked.findings[:MOST_FINDINGS]]
    return table(["Check", "Row", "What differs"], rows, empty="")


def _table(chart: dict[str, Any]) -> SafeString:
    """Return the days on which something was used, newest first."""
    series = chart["datasets"]
    days = list(zip(chart["labels"], *(row["data"] for row in series), strict=True))
    rows = [[day, *(f"{value:,.2f}" for value in values)] for day, *values in reversed(days) if any(values)]
    return table(["Day (UTC)", *(row["label"] for row in series)], rows, empty="Nothing was used.")
