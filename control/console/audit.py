"""The tenant's audit trail as a page, for its owners and admins."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from control.console.tenancy import Place, tenant_page
from control.screens.audit import OF_TENANTS, Asked, audit_table
from tenancy.models import AuditEvent


@require_safe
@tenant_page
def audit(request: HttpRequest, place: Place) -> HttpResponse:
    """Show a page of events, newest first, by the filters of the address."""
    if not place.access.may("audit"):
        raise Http404
    asked = Asked.of(request.GET, urlencode(place.name))
    table = audit_table(asked.rows(AuditEvent.objects.of(place.tenant)), asked, for_operator=False)
    context = place.context(page="audit", asked=asked, choices=asked.choices(OF_TENANTS), table=table)
    return render(request, "console/audit.html", context)
