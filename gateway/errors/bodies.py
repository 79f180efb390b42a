"""Each API's body of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from gateway.errors.refusal import Refusal

ErrorBody = Callable[[Refusal, UUID], dict[str, Any]]

ANTHROPIC = b"anthropic-version"  # a header of every request of that API's clients


def openai_error(refusal: Refusal, request_id: UUID) -> dict[str, Any]:
    """OpenAI's error object, with the request's id beside its four fields."""
    kind = _KINDS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": {**error, "request_id": str(request_id)}}


_KINDS = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


def anthropic_error(refusal: Refusal, request_id: UUID) -> dict[str, Any]:
    """Anthropic's error object; our code and the field stand in its `details`."""
    kind = _ANTHROPIC_KINDS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    message = refusal.message
    if refusal.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by which clients know that they have to shorten it
    details = {"error_code": refusal.code, "param": refusal.param}
    error = {"type": kind, "message": message, "details": details}
    return {"type": "error", "error": error, "request_id": str(request_id)}


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
