"""Everybody's requests: the list, its CSV, the page of one, also as its tenant sees it, and its refund."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from base.units import format_credits
from billing.selectors.requests import record_at
from billing.services.credits import refund_request
from control.operate.asks import Ask, answered, bound
from control.operate.base import Desk, operator_page
from control.screens import request as one
from control.screens import requests
from control.screens.forms import CreditsField, OnceForm
from control.screens.requests import Viewer

_MAY_REFUND = "billing.add_ledgertransfer"
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
    return one.answer(request, viewer, text, desk.context(may_refund=desk.may(_MAY_REFUND)))


class RefundForm(OnceForm):
    """How much of a request's charge is given back, and why."""

    amount = CreditsField(required=False, label="Credits", help_text="Empty: all that it is charged.")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger, which the tenant reads too.")


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.view_usagerecord", _MAY_REFUND)
def refund(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Give back what a request was charged, in whole or part."""
    record = record_at(pk, None)
    if record is None:
        raise Http404

    def act(asked: dict[str, Any]) -> str:
        taken = refund_request(request=pk, actor=str(desk.user), **asked)
        return f"{format_credits(taken, separator=',')} credits are given back."

    follows = [
        f"It is charged {format_credits(record.charge, separator=',')} credits.",
        "They go back to the grants that paid it, the last first. What came from a grant that has ended is lost.",
    ]
    ask = Ask("Refund this request", "Refund", reverse("operate-request", args=[pk]), record.model, "requests", follows)
    return answered(request, desk, ask, RefundForm(bound(request)), act)
