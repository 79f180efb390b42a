"""An error answer to a request, as data; and each API's body of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """An error for the client: HTTP status, a stable `code`, a sentence, the field it is about, and headers.

    `code` is one of the strings in docs/errors.md. `should_retry` False sends ``x-should-retry: false``. `tenant` and
    `api_key` are set where the caller is known but refused (a revoked key); `has_record` is True when the request ran,
    so that it has or will have a usage record. `input_tokens` is the size of its prompt, where that was counted before.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        should_retry: bool | None = None,
        tenant: UUID | None = None,
        api_key: UUID | None = None,
        has_record: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        self.tenant = tenant
        self.api_key = api_key
        self.has_record = has_record
        self.input_tokens: int | None = None
        if should_retry is not None:
            self.headers["x-should-retry"] = "true" if should_retry else "false"

    def encodable(self) -> Refusal:
        """Return the refusal with what no answer can carry replaced by question marks: half characters (lone
        surrogates), values that are no text, headers beyond Latin-1.
        """
        headers = {_text(name, "latin-1"): _text(value, "latin-1") for name, value in self.headers.items()}
        param = None if self.param is None else _text(self.param)
        return Refusal(
            self.status,
            _text(self.code),
            _text(self.message),
            param=param,
            headers=headers,
            tenant=self.tenant,
            api_key=self.api_key,
            has_record=self.has_record,
        )


def _text(value: object, encoding: str = "utf-8") -> str:
    return str(value).encode(encoding, errors="replace").decode(encoding)


def internal_error() -> Refusal:
    """Return the 500 for an unexpected error, which the log has under the request's id."""
    return Refusal(500, "internal_error", "Something went wrong on our side.")


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
