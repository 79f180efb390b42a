"""The pages of the two errors that any address can have."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from gateway.errors.refusal import Refusal
from gateway.middleware import request_id_of


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404 with a page that says so."""
    context = {"title": "Not found", "text": "There is no page at this address."}
    return render(request, "gateway/link.html", context, status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 500 without touching the database: JSON under /api/, a page elsewhere, both with the request's id."""
    request_id = str(request_id_of(request))
    if request.path.startswith("/api/"):
        refusal = Refusal(500, "internal_error", "Something went wrong on our side.")
        return JsonResponse(refusal.body(request_id), status=500)
    return HttpResponse(render_to_string("gateway/500.html", {"request_id": request_id}), status=500)
