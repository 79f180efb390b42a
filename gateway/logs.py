"""Structured logs: one JSON object a line, with the request's id; never a prompt, an answer or a key.

On a terminal they are lines for people instead: the time of day, what happened, and what it was about.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO
from uuid import UUID

import msgspec
import structlog

# Secrets that work by themselves: tokens in the addresses of links (ours and allauth's), and API keys.
_SECRETS = re.compile(
    r"(?P<before>/(?:links|invitations|accounts/(?:password/reset/key|confirm-email))/|sk-sluice-)[^/\s\"']+"
)


def without_secrets(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return the line with links' tokens and API keys removed."""
    for name in ("event", "path"):
        text = line.get(name)
        if isinstance(text, str):
            line[name] = _SECRETS.sub(r"\g<before>…", text)
    return line


_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    without_secrets,
]

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _json(event: object, **_: Any) -> str:
    return _encode(event).decode()


def _shortened(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Leave out, for a terminal, ids and the second of each request's two lines."""
    if line.get("event") == "generation_ended":
        raise structlog.DropEvent
    line.pop("request_id", None)
    line["timestamp"] = time.strftime("%H:%M:%S")
    return {name: str(value) if isinstance(value, UUID) else value for name, value in line.items()}


def _rendering(stream: TextIO) -> list[structlog.typing.Processor]:
    if not stream.isatty():
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    return [
        _shortened,
        structlog.dev.ConsoleRenderer(
            colors="NO_COLOR" not in os.environ, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def line_formatter(stream: TextIO | None = None) -> logging.Formatter:
    """Return the formatter of the standard library's records for `stream`, or for standard error."""
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED, processors=[remove, *_rendering(stream or sys.stderr)]
    )


def _as_a_warning(record: logging.LogRecord) -> bool:
    """Take the traceback from a line that anybody can make us write, and its alarm: the client is at fault."""
    record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
    return True


def configure_logs(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Make structlog and the standard library's loggers write to `stream`, or to standard error.

    Our own lines don't pass through the standard library: every request writes two, and that way costs five times more.
    """
    stream = stream or sys.stderr
    structlog.configure(
        processors=[*_SHARED, *_rendering(stream)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(line_formatter(stream))
    logging.getLogger("django.security.DisallowedHost").addFilter(_as_a_warning)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


@contextmanager
def request_bound(request_id: str) -> Iterator[None]:
    """Within the context, lines of this task and of tasks that it starts carry the request's id."""
    before = structlog.contextvars.bind_contextvars(request_id=request_id)
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**before)
