"""A request that gets an error instead of an answer, in the API's own shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """An error for the client: HTTP status, OpenAI's `type`, a stable `code`, the field it is about, and headers.

    `code` is one of the strings in docs/errors.md. `should_retry` False sends ``x-should-retry: false``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.kind = kind or _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.headers = dict(headers or {})
        if should_retry is not None:
            self.headers["x-should-retry"] = "true" if should_retry else "false"

    def body(self, request_id: str) -> dict[str, Any]:
        """The error object, with the request id beside OpenAI's four fields."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, "request_id": request_id}}


def internal_error() -> Refusal:
    """The 500 for a fault of ours that has no better name; what it was stands in the log under the request's id."""
    return Refusal(500, "internal_error", "Something went wrong on our side.")


_KINDS = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}
