"""The audit trail of the whole installation."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from control.operate.base import Desk, operator_page
from control.screens.audit import Asked, audit_table
from tenancy.models import AuditEvent


@require_safe
@operator_page("gateway.view_auditevent")
def audit(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show a page of events, newest first, by the filters of the address."""
    asked = Asked.of(request.GET)
    events = AuditEvent.objects.unscoped().select_related("tenant")
    table = audit_table(asked.rows(events), asked, for_operator=True, of_one=False)
    context = desk.context(page="audit", asked=asked, choices=asked.choices(), table=table)
    return render(request, "operate/audit.html", context)
