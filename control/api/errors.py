"""The management API's errors: OpenAI's shape, with the request's id."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from base.errors import RoleError, ServiceError
from control.middleware import request_id_of
from gateway.errors.faults import refusal_of_route
from gateway.errors.refusal import Refusal, openai_error
from routing.errors import RoutingError


def handle_exception(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the answer for `error`; None leaves an unexpected one to the server's own 500."""
    refusal = refusal_of(error)
    if refusal is None:
        return None
    refusal = refusal.encodable()  # what it quotes of a body may be half a character
    set_rollback()
    request: HttpRequest = context["request"]._request  # noqa: SLF001 - DRF's documented way to Django's request
    body = openai_error(refusal, request_id_of(request))
    return Response(body, status=refusal.status, headers=refusal.headers)


def refusal_of(error: Exception) -> Refusal | None:
    """Translate what views and services raise; None for an unexpected error."""
    answer: Refusal | None = None
    match error:
        case Refusal():
            answer = error
        case RoleError():
            answer = Refusal(403, "role_not_allowed", error.message, param=error.field or None)
        case ServiceError():
            answer = Refusal(400, "invalid_value", error.message, param=error.field or None)
        case RoutingError():
            answer = refusal_of_route(error)
        case Http404():
            answer = Refusal(404, "not_found", "There is no such thing here.")
        case PermissionDenied():
            answer = Refusal(403, "permission_denied", str(error) or "This is not allowed.")
        case exceptions.ValidationError():
            param, message = _first_of(error.detail)
            answer = Refusal(400, "invalid_value", message, param=param)
        case exceptions.APIException():
            answer = _of_framework(error)
    return answer


@csrf_exempt  # nothing is done here, and who has no form's token is to read that there is no such address
def unknown_endpoint(request: HttpRequest, path: str = "") -> HttpResponse:
    """Answer 404 for an address under /api/ that isn't any."""
    refusal = Refusal(404, "unknown_endpoint", f"There is no {request.method} {request.path}.")
    return JsonResponse(openai_error(refusal, request_id_of(request)), status=404)


def _of_framework(error: exceptions.APIException) -> Refusal:
    if isinstance(error, exceptions.Throttled):
        seconds = max(getattr(error, "wait", None) or 0, 1)  # DRF has rounded it up
        message = f"Too many calls of the management API: try again in {seconds} s."
        return Refusal(429, "rate_limit_exceeded", message, headers={"Retry-After": str(seconds)})
    detail = error.detail
    code = str(detail.code if isinstance(detail, exceptions.ErrorDetail) else error.default_code)
    headers: dict[str, str] = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    return Refusal(error.status_code, code, str(detail), headers=headers)


def _first_of(detail: Any, path: str = "") -> tuple[str | None, str]:
    """Return the first field that is wrong, as a dotted path, and what is wrong with it."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            if inner:
                return _first_of(inner, path if name == "non_field_errors" else f"{path}.{name}".lstrip("."))
    if isinstance(detail, list):
        for inner in detail:
            if inner:
                return _first_of(inner, path)
    return path or None, str(detail)
