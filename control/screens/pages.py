"""Pages of the errors that any address can have."""

from __future__ import annotations

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from control.middleware import request_id_of
from gateway.errors.refusal import Refusal, internal_error, openai_error


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 400 for what Django won't take, without asking anything of the request: its host may be what is wrong."""
    text = "This request can't be understood."
    if isinstance(exception, DisallowedHost):
        text = "This server has another name: see SLUICE_BASE_URL and SLUICE_ALLOWED_HOSTS."
    if request.path.startswith("/api/"):
        return _json(request, Refusal(400, "invalid_http", text))
    return HttpResponse(render_to_string("gateway/link.html", {"title": "Bad request", "text": text}), status=400)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404 with a page that says so, and in the API's shape to who doesn't ask for a page."""
    if "text/html" not in request.headers.get("accept", ""):
        refusal = Refusal(404, "unknown_endpoint", f"There is no {request.method} {request.path[:200]}.")
        return _json(request, refusal)
    context = {"title": "Not found", "text": "There is no page at this address."}
    return render(request, "gateway/link.html", context, status=404)


def too_many_requests(request: HttpRequest) -> HttpResponse:
    """Answer 429 for a page that was asked for too often; every limit of pages counts minutes."""
    context = {"title": "Too many requests", "text": "Wait a minute, then try again."}
    response = render(request, "gateway/link.html", context, status=429)
    response.headers["Retry-After"] = "60"
    return response


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 500 without touching the database: JSON under /api/, a page elsewhere, both with the request's id."""
    if request.path.startswith("/api/"):
        return _json(request, internal_error())
    request_id = str(request_id_of(request))
    return HttpResponse(render_to_string("gateway/500.html", {"request_id": request_id}), status=500)


def _json(request: HttpRequest, refusal: Refusal) -> JsonResponse:
    return JsonResponse(openai_error(refusal, request_id_of(request)), status=refusal.status)
