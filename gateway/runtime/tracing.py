"""Spans of requests, where OpenTelemetry is configured; where it isn't, nothing of it is imported and nothing is done.

A request's spans: the request itself → admission → hold, engine, settle. None holds a prompt, an answer or a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Attributes = Mapping[str, str | int | float | bool]


class Spans(Protocol):
    """The maker of spans (`gateway.runtime.otel`); its methods are this module's functions."""

    def request(
        self, headers: Sequence[tuple[bytes, bytes]], is_wanted: Callable[[], bool]
    ) -> AbstractContextManager[Span]: ...

    def span(self, name: str, attributes: Attributes | None) -> AbstractContextManager[Span]: ...

    def call(self, name: str, attributes: Attributes) -> AbstractContextManager[Span]: ...

    def event(self, name: str, attributes: Attributes | None) -> None: ...

    def failed(self, span: Span) -> None: ...


NOTHING: nullcontext[None] = nullcontext()  # the context of what makes no span
_spans: Spans | None = None


def use(spans: Spans | None) -> None:
    """Make spans with `spans` from now on; None: make none."""
    global _spans  # noqa: PLW0603 - one per process, as the exporter is
    _spans = spans


def is_on() -> bool:
    """Whether spans are made."""
    return _spans is not None


def request(
    headers: Sequence[tuple[bytes, bytes]], is_wanted: Callable[[], bool]
) -> AbstractContextManager[Span | None]:
    """Return the context of one request, with its span or None.

    A valid `traceparent` among the headers makes it a child of the client's span. It is exported if, at the end,
    `is_wanted()`.
    """
    return NOTHING if _spans is None else _spans.request(headers, is_wanted)


def span(name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span | None]:
    """Return the context of one step of the current request, with its span or None."""
    return NOTHING if _spans is None else _spans.span(name, attributes)


def call(name: str, attributes: Attributes) -> AbstractContextManager[Span | None]:
    """Return the context of a call of an engine, with its span or None; a remote one is told of it by `traceparent`."""
    return NOTHING if _spans is None else _spans.call(name, attributes)


def event(name: str, attributes: Attributes | None = None) -> None:
    """Note something that happened in the current step."""
    if _spans is not None:
        _spans.event(name, attributes)


def failed(span: Span) -> None:
    """Mark the span as failed."""
    if _spans is not None:
        _spans.failed(span)


def trace_id_of(span: Span) -> str:
    """Return the id of the span's trace, as log lines have it."""
    return f"{span.get_span_context().trace_id:032x}"


def describe(span: Span, attributes: Mapping[str, Any]) -> None:
    """Add those attributes that aren't None."""
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
