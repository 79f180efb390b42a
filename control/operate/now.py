"""What runs now, and what needs somebody."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from base.checks import Severity
from control.operate.base import Desk, operator_page
from control.screens.tables import Cell, Column, Row, State, Table
from gateway.runtime.observed import noted_results

_NEEDS = [
    Column("How bad", "state"),
    Column("Check", "name"),
    Column("What was found", "wraps"),
    Column("What to do", "wraps"),
]


@require_safe
@operator_page()
def now(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show what the checks found, the worst first."""
    found = sorted((one for one in noted_results() if not one.is_fine), key=lambda one: one.severity)
    rows = [
        Row([_severity(one.severity), Cell(one.name, detail=finding.subject), finding.text, finding.mend])
        for one in found
        for finding in one.findings
        if finding.mend
    ]
    needs = Table("What needs you", _NEEDS, rows, "Every check is fine.", id="needs")
    return render(request, "operate/now.html", desk.context(page="now", needs=needs))


def _severity(severity: str) -> State:
    return State(severity, "bad" if severity == Severity.CRITICAL else "warn")
