"""The worker's append-only record: which requests were begun, how they ended, and which will never run.

Binary rows in files, locked by one process at a time. A row has been written to the kernel when a method returns, so it
outlives the process (a power cut may lose the last seconds, in the tenants' favour). Rows count for 24 hours, across
restarts. Every hour, or after 131,000 ids, the file is rotated: it is renamed (its name and a number) and a new one
begins; a file without a row of the last 24 hours is deleted. Only the current file's index is in memory: that of a
rotated file lies beside it and is mapped.

A row is a checksum, its length, a kind, the time in seconds, the request's id in 16 bytes, and for an end its
`Finished` without the times in msgpack: about 25 bytes to begin and 40 to end.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from inference.types import EngineFault, Evidence, Finished, FinishReason, Lost, NothingRan, Usage
from inference.worker.record_file import MAX_IDS, RecordFile, Row, pack_row

KEEP_SECONDS = 24 * 3600
FILE_SECONDS = 3600
MAX_CLOCK_SKEW = 3600  # seconds between the clock of the host that made an id and this one
UUID7 = 7
BEGUN, ENDED, NEVER = 1, 2, 3

_REASONS = tuple(FinishReason)
_MAX_TEXT = 8000  # characters of an error's message or of a stop string


class RecordLockedError(Exception):
    """Another process has locked this record."""


class _End(NamedTuple):
    """A `Finished` as it is stored; its reason as an index into `FinishReason`."""

    reason: int
    exact: bool
    input: int
    cache_read: int
    output: int
    reasoning: int
    stop: str | int | None
    error: tuple[str, str, bool] | None
    param: str | None = None  # of the error; records of earlier releases end before it


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_End).decode


class Record:
    """The record in its files. Every method may be called by any thread."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Lock the record and open its files; raise `RecordLockedError` when another process has locked it."""
        self._path = path
        self._clock = clock
        self._mutex = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is a file of its own, since the record's file is rotated.
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise RecordLockedError(f"another worker holds the record {path}") from error
        self._files = self._open()

    def begin(self, request_ids: Sequence[str]) -> None:
        """Record that the first forward pass of these requests begins."""
        self._append([(BEGUN, request_id, b"") for request_id in request_ids])

    def finish(self, ends: Mapping[str, Finished]) -> None:
        """Record how these requests ended, by id."""
        self._append([(ENDED, request_id, _packed(finished)) for request_id, finished in ends.items()])

    def is_closed(self, request_id: str) -> bool:
        """True when the request was begun, ended or declared as never run: its id may not be submitted again."""
        with self._mutex:
            return self._find(request_id) is not None

    def evidence(self, request_id: str) -> Evidence:
        """Return the evidence about a request that isn't running.

        An unknown id is recorded as one that never ran, and stays refused.
        """
        with self._mutex:
            row = self._find(request_id)
            if row is None:
                self._write([(NEVER, request_id, b"")])
                return NothingRan()
        if row.kind == ENDED:
            return _unpacked(row.body)
        return Lost() if row.kind == BEGUN else NothingRan()

    def close(self) -> None:
        """Close the files and release the lock."""
        for file in self._files:
            file.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, rows: Sequence[tuple[int, str, bytes]]) -> None:
        if rows:
            with self._mutex:
                self._write(rows)

    def _find(self, request_id: str) -> Row | None:
        """The request's latest row, if it still counts."""
        key, oldest = _key(request_id), int(self._clock()) - KEEP_SECONDS
        if key[6] >> 4 == UUID7:  # no row is older than its id
            oldest = max(oldest, int.from_bytes(key[:6]) // 1000 - MAX_CLOCK_SKEW)
        for file in reversed(self._files):
            if file.until < oldest:
                return None
            if (row := file.find(key)) is not None:
                return row if row.at >= oldest else None
        return None

    def _write(self, rows: Sequence[tuple[int, str, bytes]]) -> None:
        """Append `rows` with one write."""
        now = int(self._clock())
        current = self._files[-1]
        if current.size and (now - current.since >= FILE_SECONDS or current.ids >= MAX_IDS):
            self._rotate(now)
        self._files[-1].append([pack_row(kind, now, _key(name), body) for kind, name, body in rows], now)

    def _rotate(self, now: int) -> None:
        """Rename the current file, begin a new one, and delete those without a row that still counts."""
        number = max(_numbered(self._path), default=0) + 1
        self._files[-1].rotate(self._path.with_name(f"{self._path.name}.{number}"))
        self._files.append(RecordFile(self._path))
        while self._files[0].until < now - KEEP_SECONDS:
            self._files.pop(0).delete()

    def _open(self) -> list[RecordFile]:
        """Open the files, the current one last; delete those without a row that still counts."""
        oldest = int(self._clock()) - KEEP_SECONDS
        files = []
        for path in _numbered(self._path).values():
            file = RecordFile(path)
            if file.until < oldest:
                file.delete()
            else:
                file.write_index()
                files.append(file)
        return [*files, RecordFile(self._path)]


def ends_in(path: Path) -> dict[str, Finished | None]:
    """Return how each request that the record at `path` knows (by its id in hex) ended; None for one only begun.

    For audits, beside a worker that may be writing.
    """
    found: dict[str, Finished | None] = {}
    for part in [*_numbered(path).values(), path]:
        for row in _rows_of(part):
            if row.kind == ENDED:
                found[row.key.hex()] = _unpacked(row.body)
            elif row.kind == BEGUN:
                found.setdefault(row.key.hex(), None)
    return found


def kinds_in(path: Path) -> list[tuple[int, str]]:
    """Return the kind (`BEGUN`, `ENDED`, `NEVER`) and the request of each of the record's rows, in their order."""
    return [(row.kind, row.key.hex()) for part in [*_numbered(path).values(), path] for row in _rows_of(part)]


def _rows_of(path: Path) -> Iterator[Row]:
    if path.exists():
        file = RecordFile(path, writable=False)
        try:
            yield from file.rows()
        finally:
            file.close()


def _numbered(path: Path) -> dict[int, Path]:
    """The rotated files by number, the oldest first."""
    found = {}
    for each in path.parent.glob(f"{path.name}.*"):
        number = each.name.removeprefix(f"{path.name}.")
        if number.isdecimal():
            found[int(number)] = each
    return dict(sorted(found.items()))


def _key(request_id: str) -> bytes:
    """A request's id in 16 bytes: a uuid's own, else a digest."""
    try:
        key = bytes.fromhex(request_id)
    except ValueError:
        key = b""
    if len(key) == 16:
        return key
    digest = bytearray(blake2b(request_id.encode(), digest_size=16).digest())
    digest[6] &= 0x0F  # version 0, so that it isn't taken for a uuid7
    return bytes(digest)


def _packed(finished: Finished) -> bytes:
    usage, error, stop = finished.usage, finished.error, finished.stop
    return _encode(
        _End(
            _REASONS.index(finished.reason),
            finished.exact,
            usage.input,
            usage.cache_read,
            usage.output,
            usage.reasoning,
            stop[:_MAX_TEXT] if isinstance(stop, str) else stop,
            None if error is None else (error.code, error.message[:_MAX_TEXT], error.retryable),
            None if error is None else error.param,
        )
    )


def _unpacked(body: bytes) -> Finished:
    end = _decode(body)
    usage = Usage(end.input, end.cache_read, end.output, end.reasoning)
    error = None if end.error is None else EngineFault(*end.error, param=end.param)
    return Finished(_REASONS[end.reason], usage, error, end.stop, exact=end.exact)
