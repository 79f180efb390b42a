"""Structured logs: one JSON object a line, with the fields of docs/monitoring.md; never a prompt, an answer or a key.

On a terminal they are lines for people instead: the time of day, what happened, and what it was about.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TextIO, cast
from uuid import UUID

import msgspec
import structlog

from inference.logs import CLEAR_LINE, BackgroundStream, folded, for_people, is_shown_by_another

# Secrets that work by themselves: tokens in the addresses of links (ours and allauth's), and API keys.
_SECRETS = re.compile(
    r"(?P<before>/(?:links|invitations|addresses|accounts/(?:password/reset/key|confirm-email))/|sk-sluice-)[^/\s\"']+"
)


def without_secrets(text: str) -> str:
    """Return the text without links' tokens and API keys."""
    # `sub` alone takes several times as long for none.
    return _SECRETS.sub(r"\g<before>…", text) if _SECRETS.search(text) else text


def process_name() -> str:
    """Return what this process runs: the command of manage.py ("gateway", "jobs"), else the program's name."""
    program = Path(sys.argv[0]).name
    return sys.argv[1] if program == "manage.py" and len(sys.argv) > 1 else program


_process = {"process": process_name(), "pid": os.getpid()}
os.register_at_fork(after_in_child=lambda: _process.update(pid=os.getpid()))

# What the lines of this task, and of tasks that it starts, are about.
_about: ContextVar[dict[str, Any] | None] = ContextVar("about", default=None)


def _complete(_: object, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add level, time, process, and what the line is about unless it says so itself; take secrets out.

    All in one processor, since every request writes two lines.
    """
    line = {**_process, **(_about.get() or {}), **line}
    line["level"] = _LEVELS.get(method, method)
    line["timestamp"] = f"{datetime.now(UTC).isoformat()[:-6]}Z"
    for name in ("event", "path"):
        if isinstance(text := line.get(name), str):
            line[name] = without_secrets(text)
    return line


_LEVELS = {"warn": "warning", "exception": "error"}  # methods that aren't called like their level
_SHARED: list[structlog.typing.Processor] = [_complete]


_PLAIN = (bool, int, float, UUID, type(None))
_STRUCTLOGS_OWN = ("_record", "_from_structlog", "exc_info")


def _others_fields(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return the line without uvicorn's second text, which repeats the first with escapes for a terminal, and without
    secrets in whatever else others add: Django a request, whose text has its path.
    """
    line.pop("color_message", None)
    for name, value in line.items():
        if name not in _STRUCTLOGS_OWN and not isinstance(value, _PLAIN):
            line[name] = without_secrets(value if isinstance(value, str) else repr(value))
    return line


# Of the standard library's records: their logger's name, and what their callers added.
_FOREIGN: list[structlog.typing.Processor] = [
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    _others_fields,
    *_SHARED,
]

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _json_line(logger: object, method: str, line: structlog.typing.EventDict) -> str:
    if "exc_info" in line:
        line = structlog.processors.format_exc_info(logger, method, line)
        if isinstance(text := line.get("exception"), str):
            line["exception"] = without_secrets(text)
    try:
        return _encode(line).decode()
    except UnicodeEncodeError:  # half a character in somebody's text: json writes it as an escape
        return json.dumps(line, default=lambda value: str(value) if isinstance(value, UUID) else repr(value))


_NOT_SHOWN = ("request_id", "trace_id", "process", "pid", "logger", "timestamp")


def _shown(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Drop, for a terminal, the second of each request's two lines, and all but requests and faults where `serve` tells
    people how far it is.
    """
    is_quiet = line["level"] in {"debug", "info"} and is_shown_by_another() and line.get("event") != "answered"
    if is_quiet or line.get("event") == "generation_ended":
        raise structlog.DropEvent
    return line


def _text(logger: object, method: str, line: structlog.typing.EventDict) -> str:
    if "exc_info" in line:
        line = structlog.processors.format_exc_info(logger, method, line)
    level, event, trace = line.pop("level"), str(line.pop("event", "")), line.pop("exception", "")
    return for_people(level, event, {name: value for name, value in line.items() if name not in _NOT_SHOWN}, trace)


def fitted(text: str) -> str:
    """Return `text` in lines that fit the terminal."""
    return folded(text)


def for_reader(text: str) -> str:
    """Return `text` for people at a terminal: in lines that fit it, in place of a line that counts seconds."""
    return CLEAR_LINE + fitted(text)


class Lines(Protocol):
    """The stream of the lines."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class _StandardError:
    """Standard error as it is at each write: what runs a command may have replaced it."""

    def write(self, text: str, /) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


WINDOW_SECONDS, MOST_ALIKE = 10.0, 20
_MOST_EVENTS = 1000


class _Flood:
    """Bounds the warnings and errors of one event to `MOST_ALIKE` in `WINDOW_SECONDS`: each request gives one where
    the database takes nothing. The first line of the next window says how many were left out.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}  # by event: when its window began, and lines since

    def passes(self, *event: object) -> int | None:
        """Return how many lines like this one were left out before it; None where it is to be left out too."""
        now = time.monotonic()
        began, count = self._seen.get(event, (now, 0))
        if now - began < WINDOW_SECONDS:
            self._seen[event] = began, count + 1
            return 0 if count < MOST_ALIKE else None
        if len(self._seen) > _MOST_EVENTS:
            self._seen.clear()
        self._seen[event] = now, 1
        return max(0, count - MOST_ALIKE)

    def processor(self, _: object, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Bound our own lines."""
        if method in {"debug", "info"}:
            return line
        left_out = self.passes(method, str(line.get("event")), _kind_of(line.get("exc_info")))
        if left_out is None:
            raise structlog.DropEvent
        return {**line, "left_out": left_out} if left_out else line

    def filter(self, record: logging.LogRecord) -> bool:
        """Bound the lines of the standard library's loggers."""
        if record.levelno < logging.WARNING:
            return True
        about = getattr(record, "status_code", None), getattr(record, "job", None)  # Django's, and our periodic work's
        left_out = self.passes(record.name, record.levelno, str(record.msg), _kind_of(record.exc_info), *about)
        if left_out:
            record.left_out = left_out
        return left_out is not None


def _kind_of(exc_info: object) -> object:
    """Return the type of the exception that a line tells of, None without one."""
    if exc_info is True:
        exc_info = sys.exception()
    return type(exc_info[1] if isinstance(exc_info, tuple) else exc_info) if exc_info else None


def _as_a_warning(record: logging.LogRecord) -> bool:
    """Take the traceback from a line that anybody can make us write, and its alarm: the client is at fault."""
    record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
    return True


def configure_logs(level: int = logging.INFO, stream: Lines | None = None) -> None:
    """Make structlog and the standard library's loggers write to `stream`, or to standard error.

    Our own lines don't pass through the standard library: every request writes two, and that way costs five times more.
    """
    stream = stream or _StandardError()
    for_terminal = stream.isatty()
    rendering = _text if for_terminal else _json_line
    flood = _Flood()
    structlog.configure(
        processors=[flood.processor, *_SHARED, *([_shown] if for_terminal else []), rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_FOREIGN, processors=[remove, rendering])
    )
    handler.addFilter(flood.filter)
    logging.getLogger("django.security.DisallowedHost").addFilter(_as_a_warning)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING) if for_terminal and is_shown_by_another() else level)


def configure_command(_: object) -> None:
    """Configure the logs of a command, as Django's LOGGING_CONFIG: what went wrong; those that serve say more.

    Django calls it with every `setup`, which making the ASGI application is too: what is configured by then stays.
    """
    if structlog.is_configured():
        return
    configure_logs(logging.WARNING)
    structlog.configure(cache_logger_on_first_use=False)  # a command that serves configures again


_behind: list[BackgroundStream] = []


def background() -> BackgroundStream:
    """Return standard error behind a thread: for processes that serve, which no stalled reader may stop."""
    log = structlog.get_logger(__name__)
    stream = BackgroundStream(sys.stderr, lambda count: log.warning("log_lines_dropped", count=count))
    _behind.append(stream)
    return stream


def lines_dropped() -> int:
    """Return how many lines of this process's log were dropped because nobody read them."""
    return sum(stream.dropped for stream in _behind)


@contextmanager
def request_bound(request_id: str) -> Iterator[dict[str, Any]]:
    """Within the context, lines of this task and of tasks that it starts carry the request's id, what those around it
    carry, and whatever is put into the dictionary that it yields.
    """
    about = {**(_about.get() or {}), "request_id": request_id}
    token = _about.set(about)
    try:
        yield about
    finally:
        _about.reset(token)
