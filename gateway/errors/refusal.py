"""A request that gets an error instead of an answer, as data: each API's own shape of it is the edge's."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """An error for the client: HTTP status, a stable `code`, a sentence, the field it is about, and headers.

    `code` is one of the strings in docs/errors.md. `should_retry` False sends ``x-should-retry: false``. `tenant` and
    `api_key` are whose request it was, where that is known of who may not ask (a revoked key); `has_record` says that
    the request ran and a usage record tells of it.
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


def internal_error() -> Refusal:
    """The 500 for a fault of ours that has no better name; what it was stands in the log under the request's id."""
    return Refusal(500, "internal_error", "Something went wrong on our side.")
