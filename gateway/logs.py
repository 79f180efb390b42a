"""Structured logs: one JSON object a line, with the request's id; never a prompt, an answer or a key."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO
from uuid import UUID

import structlog

_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def configure_logs(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Make structlog and the standard library's loggers write JSON lines to `stream`, or to standard error."""
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


@contextmanager
def request_bound(request_id: UUID) -> Iterator[None]:
    """Everything that this task (and what it starts) logs meanwhile carries the request's id."""
    with structlog.contextvars.bound_contextvars(request_id=str(request_id)):
        yield
