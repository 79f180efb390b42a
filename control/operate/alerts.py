"""The operators' alerts and web-hooks."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from control.operate.base import Desk, operator_page
from control.screens.alerts import Side, alerts_page


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("gateway.view_alert")
def operators_alerts(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the installation's troubles, and their recipients."""

    def context(**more: Any) -> dict[str, Any]:
        return desk.context(page="system", **more)

    return alerts_page(request, Side(None, context, reverse("operate-alerts"), desk.may("gateway.change_webhook")))
