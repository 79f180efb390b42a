"""Middleware of the control plane: the request's id, one content security policy per part, the operator's scope."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django_scopes import scopes_disabled

from base.ids import uuid7
from tenancy.audit.origin import asked_by

ADMIN_PREFIX = "/admin/"
OPERATOR_PREFIXES = (ADMIN_PREFIX, "/operate/")
_HELD = "sluice.request_id"


class RequestIdMiddleware:
    """Gives each request the id that its errors show: the one of `gateway.http.guard`, or a new one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer; adds ``x-request-id`` unless `gateway.http.guard` does."""
        request_id = request_id_of(request)
        response = self.get_response(request)
        if "request_id" not in getattr(request, "scope", {}):
            response.headers["x-request-id"] = str(request_id)
        return response


def request_id_of(request: HttpRequest) -> UUID:
    """Return the request's id, the same at each call."""
    scope = getattr(request, "scope", {})
    known = scope.get("request_id") or request.META.get(_HELD)
    if not isinstance(known, UUID):
        known = request.META[_HELD] = uuid7()
    return known


class PolicyMiddleware(CSPMiddleware):  # type: ignore[misc] # django-csp isn't followed
    """Sends the strict content security policy; for the admin, whose pages are Unfold's, the relaxed one."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        """Return django-csp's parts, with the relaxed policy for the admin."""
        parts = super().get_policy_parts(request, response, report_only)
        if not report_only and request.path_info.startswith(ADMIN_PREFIX):
            parts.replace = settings.SLUICE_RELAXED_POLICY
        return parts


class OriginMiddleware:
    """Makes the request the origin of audit events."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer, with the request as the origin of the events that are recorded."""
        with asked_by(request, request_id_of(request)):
            return self.get_response(request)


class OperatorScopeMiddleware:
    """Disables tenant scoping for operators' requests to their pages and the admin, rendering included."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer, unscoped where an operator asks for a page of theirs."""
        if not (request.path_info.startswith(OPERATOR_PREFIXES) and getattr(request.user, "is_staff", False)):
            return self.get_response(request)
        with scopes_disabled():
            return self.get_response(request)
