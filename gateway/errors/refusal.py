"""An error answer to a request, as data; `gateway.errors.bodies` gives it each API's shape."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """An error for the client: HTTP status, a stable `code`, a sentence, the field it is about, and headers.

    `code` is one of the strings in docs/errors.md. `should_retry` False sends ``x-should-retry: false``. `tenant` and
    `api_key` are set where the caller is known but refused (a revoked key); `has_record` is True when the request ran,
    so that it has or will have a usage record.
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
