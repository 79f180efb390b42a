"""Each API's body of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from gateway.errors.refusal import Refusal

ErrorBody = Callable[[Refusal, UUID], dict[str, Any]]


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
