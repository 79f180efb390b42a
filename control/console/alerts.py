"""A tenant's alerts and web-hooks."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from control.console.tenancy import Place, tenant_page
from control.screens.alerts import Side, alerts_page


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def tenant_alerts(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant's alerts; who may change its settings changes its web-hooks."""
    may_change = place.access.may("settings") and not place.access.is_viewer
    if not place.access.may("settings") and not place.access.may("wallet"):
        raise Http404
    address = reverse("console-alerts") + place.query
    return alerts_page(
        request, Side(place.tenant, lambda **more: place.context(page="settings", **more), address, may_change)
    )
