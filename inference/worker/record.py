"""The worker's append-only record: which requests were begun, how they ended, and which will never run.

One file of JSON lines, held by one process at a time. A line is in the kernel's hands when a method returns, so it
outlives the process (a power cut may take the last seconds, to the tenants' favour). Entries count for 24 hours,
across restarts; the file is rewritten without older ones when it is opened.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from inference.types import Evidence, Finished, Lost, NothingRan

KEEP_SECONDS = 24 * 3600.0


class RecordLockedError(Exception):
    """Another worker holds this record."""


class Begun(msgspec.Struct, tag="begun", tag_field="e"):
    """Request `id` enters its first forward."""

    id: str
    at: float


class Ended(msgspec.Struct, tag="finished", tag_field="e"):
    """Request `id` ended so."""

    id: str
    at: float
    finished: Finished


class Never(msgspec.Struct, tag="never", tag_field="e"):
    """Request `id` had not begun when somebody asked, and may not begin any more."""

    id: str
    at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Begun | Ended | Never).decode
_BEGUN, _NEVER = -1, -2


class Record:
    """See the module. Every method may be called by any thread."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Take the lock, read what is there, rewrite it without what is too old; raise `RecordLockedError`."""
        self._path = path
        self._clock = clock
        self._mutex = threading.Lock()
        # Finished entries stay in the file: the index holds their offsets, so a day of requests costs little memory.
        self._index: dict[str, tuple[float, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is a file of its own, since rewriting replaces the record's file.
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise RecordLockedError(f"another worker holds the record {path}") from error
        self._rewrite()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._file).st_size

    def begin(self, request_ids: Sequence[str]) -> None:
        """Note that these requests enter their first forward."""
        now = self._clock()
        with self._mutex:
            lines = [_encode(Begun(request_id, now)) for request_id in request_ids]
            for request_id, _ in zip(request_ids, self._append(lines), strict=True):
                self._index[request_id] = (now, _BEGUN)

    def finish(self, ends: Mapping[str, Finished]) -> None:
        """Note how these requests ended."""
        now = self._clock()
        with self._mutex:
            lines = [_encode(Ended(request_id, now, finished)) for request_id, finished in ends.items()]
            for request_id, offset in zip(ends, self._append(lines), strict=True):
                self._index[request_id] = (now, offset)
            self._expire(now)

    def is_closed(self, request_id: str) -> bool:
        """True when the request was begun, ended or declared as never run: its id may not be submitted again."""
        with self._mutex:
            return self._known(request_id) is not None

    def evidence(self, request_id: str) -> Evidence:
        """What the record says of a request that nobody works on; one it doesn't know is from now on never run."""
        with self._mutex:
            offset = self._known(request_id)
            if offset is None:
                now = self._clock()
                self._append([_encode(Never(request_id, now))])
                self._index[request_id] = (now, _NEVER)
                return NothingRan()
            if offset == _NEVER:
                return NothingRan()
            if offset == _BEGUN:
                return Lost()
            return self._read(offset)

    def close(self) -> None:
        """Give the file and its lock back."""
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, request_id: str) -> int | None:
        entry = self._index.get(request_id)
        return None if entry is None or entry[0] < self._clock() - KEEP_SECONDS else entry[1]

    def _append(self, lines: list[bytes]) -> list[int]:
        """Append `lines` with one write; return where each begins."""
        offsets = []
        position = self._end
        for line in lines:
            offsets.append(position)
            position += len(line) + 1
        data = b"\n".join([*lines, b""])
        written = os.write(self._file, data) if data else 0
        if written != len(data):
            # A full disk. Cut the torn lines off, so that what follows is whole again.
            os.ftruncate(self._file, self._end)
            raise OSError(f"the record {self._path} took {written} of {len(data)} bytes")
        self._end = position
        return offsets

    def _read(self, offset: int) -> Finished:
        size = 1024
        while b"\n" not in (chunk := os.pread(self._file, size, offset)) and len(chunk) == size:
            size *= 4
        entry = _decode(chunk[: chunk.index(b"\n")])
        if not isinstance(entry, Ended):
            raise TypeError(f"the record {self._path} has no end of a request at {offset}")
        return entry.finished

    def _expire(self, now: float) -> None:
        # Entries stand in the order of their first mention, so old ones are in front; a few at a time suffice.
        for _ in range(4):
            oldest = next(iter(self._index), None)
            if oldest is None or self._index[oldest][0] >= now - KEEP_SECONDS:
                return
            del self._index[oldest]

    def _rewrite(self) -> None:
        entries: dict[str, Begun | Ended | Never] = {}
        oldest = self._clock() - KEEP_SECONDS
        if self._path.exists():
            for line in self._path.read_bytes().split(b"\n"):
                try:
                    entry = _decode(line)
                except msgspec.MsgspecError:
                    continue  # the last line of a process that was killed while it wrote, or of a full disk
                if entry.at >= oldest:
                    entries[entry.id] = entry
        fresh = self._path.with_name(f"{self._path.name}.new")
        position = 0
        with fresh.open("wb") as file:
            for request_id, entry in entries.items():
                line = _encode(entry) + b"\n"
                file.write(line)
                place = position if isinstance(entry, Ended) else _NEVER if isinstance(entry, Never) else _BEGUN
                self._index[request_id] = (entry.at, place)
                position += len(line)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(0o600)
        fresh.replace(self._path)
