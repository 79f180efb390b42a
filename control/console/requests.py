"""A tenant's requests: the list, its CSV, and the page of one."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_safe

from control.console.tenancy import Place, tenant_page
from control.screens import request as one
from control.screens import requests
from control.screens.requests import Viewer


def _viewer(place: Place) -> Viewer:
    return Viewer(place.tenant, place.name)


@require_safe
@tenant_page
def listing(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant's requests."""
    return requests.answer(request, _viewer(place), place.context())


@require_safe
@tenant_page
def export(request: HttpRequest, place: Place) -> StreamingHttpResponse:
    """Send the list as CSV."""
    return requests.answer_csv(request, _viewer(place), place.tenant.pk)


@require_safe
@tenant_page
def detail(request: HttpRequest, place: Place, text: str) -> HttpResponse:
    """Show the request with this id, in any of its forms."""
    return one.answer(request, _viewer(place), text, place.context())


@require_safe
@tenant_page
def former(request: HttpRequest, place: Place, request_id: UUID) -> HttpResponse:
    """Lead bookmarks of the former address on."""
    return redirect(reverse("console-request", args=[request_id]) + place.query, permanent=True)
