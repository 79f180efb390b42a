"""Log lines of every process: one JSON object each, with the fields of docs/monitoring.md; standard library only.

On a terminal they are for people instead: the time of day, what happened and its fields, no line wider than the
terminal.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TextIO

VARIABLE = "SLUICE_HEARTBEAT"
"""The variable in which a supervisor gives a process the path of its heartbeat file."""
PAUSE_SECONDS = 0.02  # what comes meanwhile is written at once: a thread woken for each line costs the loop as much
MOST_CHARACTERS = 4 * 1024 * 1024
DRAIN_SECONDS = 1.0

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "taskName"}  # fields of every log record


class JSONFormatter(logging.Formatter):
    """Formats a record of the standard library as one line of the common schema."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "process": self._process,
            "pid": record.process,
        }
        line.update(_added(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class LineFormatter(logging.Formatter):
    """Formats a record for people at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return for_people(record.levelname.lower(), record.getMessage(), _added(record), trace)


CLEAR_LINE = "\r\x1b[K"
"""Takes from a terminal the line on which a step counts its seconds: the step writes it again."""


def for_people(level: str, event: str, fields: Mapping[str, object], trace: str = "") -> str:
    """Return an event as lines of text that fit the terminal; a word that is wider stays whole, to be copied."""
    grade = "" if level in {"debug", "info"} else f"{level}: "
    more = "".join(f" {name}={value}" for name, value in fields.items())
    text = f"{time.strftime('%H:%M:%S')} {grade}{event}{more}"
    return CLEAR_LINE + "\n".join(filter(None, (folded(text), trace)))


def folded(text: str, indent: str = "    ") -> str:
    """Return `text` in lines that fit the terminal, the second and later ones behind `indent`."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def is_shown_by_another() -> bool:
    """Return whether a supervisor at the same terminal tells people how far this process is."""
    return VARIABLE in os.environ


def _added(record: logging.LogRecord) -> dict[str, object]:
    """Return what the caller gave as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def request_field(request_id: str) -> dict[str, str]:
    """Return the field that names a request, with the dashes that gateways and errors write it with."""
    cuts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, None))
    return {"request_id": "-".join(request_id[a:b] for a, b in cuts) if len(request_id) == 32 else request_id}


def configure(process: str, stream: TextIO) -> BackgroundStream:
    """Have the standard library's loggers write to `stream` from a thread, and return what they write to."""
    log = logging.getLogger(__name__)
    behind = BackgroundStream(stream, lambda count: log.warning("log_lines_dropped", extra={"count": count}))
    handler = logging.StreamHandler(behind)
    for_terminal = stream.isatty()
    handler.setFormatter(LineFormatter() if for_terminal else JSONFormatter(process))
    level = logging.ERROR if for_terminal and is_shown_by_another() else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    return behind


class BackgroundStream:
    """A stream for lines that a thread writes to `stream`, so that nobody waits for a reader who has stalled.

    `MOST_CHARACTERS` wait at most; lines beyond them are dropped, and `on_dropped` is called in that thread with their
    number once lines are written again. What waits at exit is written, for at most `DRAIN_SECONDS`.
    """

    def __init__(self, stream: TextIO, on_dropped: Callable[[int], None], most: int = MOST_CHARACTERS) -> None:
        self._stream = stream
        self._on_dropped = on_dropped
        self._most = most
        mutex = threading.Lock()
        self._filled, self._written = threading.Condition(mutex), threading.Condition(mutex)
        self._waiting: list[str] = []
        self._size = 0  # of what waits and of what is being written
        self._dropped = self._untold = 0
        try:
            self._file: int | None = stream.fileno()
        except OSError:  # in memory
            self._file = None
        threading.Thread(target=self._run, name="log", daemon=True).start()
        atexit.register(self.drain)

    @property
    def dropped(self) -> int:
        """How many lines were dropped since the start."""
        return self._dropped

    def write(self, text: str) -> int:
        """Have `text` written soon, or drop it. Doesn't wait."""
        with self._filled:
            if self._size + len(text) > self._most:
                self._dropped += 1
                self._untold += 1
            else:
                self._waiting.append(text)
                self._size += len(text)
                if len(self._waiting) == 1:
                    self._filled.notify()
        return len(text)

    def flush(self) -> None:
        """Do nothing: what was given is written soon, or by `drain`."""

    def isatty(self) -> bool:
        """True where people read."""
        return self._stream.isatty()

    def drain(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Wait until all is written, for at most `seconds`; return whether it is."""
        with self._written:
            return self._written.wait_for(lambda: not self._size, seconds)

    def _run(self) -> None:
        while True:
            with self._filled:
                self._filled.wait_for(lambda: self._waiting)
            time.sleep(PAUSE_SECONDS)
            with self._filled:
                text, self._waiting = "".join(self._waiting), []
            is_written = self._put(text)
            with self._written:
                self._size -= len(text)
                untold = 0
                if is_written:
                    untold, self._untold = self._untold, 0
                self._written.notify_all()
            if untold:
                self._on_dropped(untold)

    def _put(self, text: str) -> bool:
        """Write `text`; False where nobody can read it any more."""
        try:
            if self._file is None:
                self._stream.write(text)
            else:
                _write_all(self._file, text.encode(errors="backslashreplace"))
        except (OSError, ValueError):  # the reader has gone, or the stream was closed
            return False
        return True


def _write_all(file: int, data: bytes) -> None:
    """Write past the stream's own lock: the interpreter's end would wait for it, and so for a stalled reader."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except BlockingIOError:  # somebody who shares the descriptor made it so
            select.select([], [file], [])
