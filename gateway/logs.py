"""Structured logs: one JSON object a line, with the request's id; never a prompt, an answer or a key."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO
from uuid import UUID

import msgspec
import structlog

# What opens something by itself: links' tokens in addresses (our own and allauth's), and API keys.
_SECRETS = re.compile(
    r"(?P<before>/(?:links|invitations|accounts/(?:password/reset/key|confirm-email))/|sk-sluice-)[^/\s\"']+"
)


def without_secrets(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return the line with what stands in addresses and messages and opens something left out."""
    for name in ("event", "path"):
        text = line.get(name)
        if isinstance(text, str):
            line[name] = _SECRETS.sub(r"\g<before>…", text)
    return line


_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
    without_secrets,
]

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _json(event: object, **_: Any) -> str:
    return _encode(event).decode()


def configure_logs(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Make structlog and the standard library's loggers write JSON lines to `stream`, or to standard error.

    Our own lines don't pass through the standard library: every request writes two, and that way costs five times more.
    """
    render = structlog.processors.JSONRenderer(serializer=_json)
    structlog.configure(
        processors=[*_SHARED, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


@contextmanager
def request_bound(request_id: UUID) -> Iterator[None]:
    """Everything that this task (and what it starts) logs meanwhile carries the request's id."""
    before = structlog.contextvars.bind_contextvars(request_id=str(request_id))
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**before)
