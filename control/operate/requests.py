"""Everybody's requests: the list, its CSV, and the page of one, also as its tenant sees it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_safe

from control.operate.base import Desk, operator_page
from control.screens import request as one
from control.screens import requests
from control.screens.requests import Viewer

_SEES = operator_page("billing.view_usagerecord")


@require_safe
@_SEES
def listing(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show everybody's requests."""
    return requests.answer(request, Viewer(None), desk.context())


@require_safe
@_SEES
def export(request: HttpRequest, desk: Desk) -> StreamingHttpResponse:
    """Send the list as CSV."""
    return requests.answer_csv(request, Viewer(None), desk.user.pk)


@require_safe
@_SEES
def detail(request: HttpRequest, desk: Desk, text: str) -> HttpResponse:
    """Show the request with this id, in any of its forms."""
    viewer = Viewer(None, sees_with_tenants_eyes=request.GET.get("view") == "tenant")
    return one.answer(request, viewer, text, desk.context())
