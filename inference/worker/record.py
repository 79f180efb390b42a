"""The worker's append-only record: which requests were begun, how they ended, and which will never run.

JSON lines, held by one process at a time. A line is in the kernel's hands when a method returns, so it outlives the
process (a power cut may take the last seconds, to the tenants' favour). Entries count for 24 hours, across restarts.
Every hour the file moves aside (its name and a number) and a fresh one begins; one that holds nothing of the last
24 hours is deleted, so a worker that is never restarted keeps a day's entries and no more.
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
FILE_SECONDS = 3600.0


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


_Entry = Begun | Ended | Never
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Entry).decode
_BEGUN, _NEVER = -1, -2


class _File:
    """One file of the record: `since` and `until` are the times of its first and its last entry."""

    def __init__(self, path: Path, since: float) -> None:
        self.path = path
        self.since = self.until = since
        self.descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self.descriptor).st_size

    def append(self, data: bytes) -> None:
        written = os.write(self.descriptor, data)
        if written != len(data):
            # A full disk. Cut the torn lines off, so that what follows is whole again.
            os.ftruncate(self.descriptor, self.size)
            raise OSError(f"the record {self.path} took {written} of {len(data)} bytes")
        self.size += written

    def read(self, offset: int) -> Finished:
        size = 1024
        while b"\n" not in (chunk := os.pread(self.descriptor, size, offset)) and len(chunk) == size:
            size *= 4
        entry = _decode(chunk[: chunk.index(b"\n")])
        if not isinstance(entry, Ended):
            raise TypeError(f"the record {self.path} has no end of a request at {offset}")
        return entry.finished


class Record:
    """See the module. Every method may be called by any thread."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Take the lock and read what counts of earlier files; raise `RecordLockedError`."""
        self._path = path
        self._clock = clock
        self._mutex = threading.Lock()
        # Ends stay in their file: the index holds (time, file, offset), so a day of requests costs little memory.
        self._index: dict[str, tuple[float, _File, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is a file of its own, since the record's file changes.
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise RecordLockedError(f"another worker holds the record {path}") from error
        self._files = self._open()

    def begin(self, request_ids: Sequence[str]) -> None:
        """Note that these requests enter their first forward."""
        now = self._clock()
        with self._mutex:
            self._append([Begun(request_id, now) for request_id in request_ids], now)

    def finish(self, ends: Mapping[str, Finished]) -> None:
        """Note how these requests ended."""
        now = self._clock()
        with self._mutex:
            self._append([Ended(request_id, now, finished) for request_id, finished in ends.items()], now)

    def is_closed(self, request_id: str) -> bool:
        """True when the request was begun, ended or declared as never run: its id may not be submitted again."""
        with self._mutex:
            return self._known(request_id) is not None

    def evidence(self, request_id: str) -> Evidence:
        """What the record says of a request that nobody works on; one it doesn't know is from now on never run."""
        with self._mutex:
            known = self._known(request_id)
            if known is None:
                now = self._clock()
                self._append([Never(request_id, now)], now)
                return NothingRan()
            file, offset = known
            if offset == _NEVER:
                return NothingRan()
            return Lost() if offset == _BEGUN else file.read(offset)

    def close(self) -> None:
        """Give the files and the lock back."""
        for file in self._files:
            os.close(file.descriptor)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, request_id: str) -> tuple[_File, int] | None:
        entry = self._index.get(request_id)
        return None if entry is None or entry[0] < self._clock() - KEEP_SECONDS else entry[1:]

    def _append(self, entries: Sequence[_Entry], now: float) -> None:
        """Append `entries` with one write and note where they stand."""
        if not entries:
            return
        if now - self._files[-1].since >= FILE_SECONDS:
            self._turn_over(now)
        file = self._files[-1]
        if not file.size:
            file.since = now
        position = file.size
        lines = [_encode(entry) for entry in entries]
        file.append(b"\n".join([*lines, b""]))
        file.until = max(file.until, now)
        for entry, line in zip(entries, lines, strict=True):
            self._note(entry, file, position)
            position += len(line) + 1
        self._forget(now, 4 * len(entries))

    def _note(self, entry: _Entry, file: _File, position: int) -> None:
        place = position if isinstance(entry, Ended) else _NEVER if isinstance(entry, Never) else _BEGUN
        # At the end of the index, so that its front is always the oldest.
        self._index.pop(entry.id, None)
        self._index[entry.id] = (entry.at, file, place)

    def _forget(self, now: float, most: int) -> None:
        """Drop entries that are too old from the index: more at a time than come in, yet few."""
        for _ in range(most):
            oldest = next(iter(self._index), None)
            if oldest is None or self._index[oldest][0] >= now - KEEP_SECONDS:
                return
            del self._index[oldest]

    def _turn_over(self, now: float) -> None:
        """Move the current file aside, begin a fresh one, and delete those in which nothing counts any more."""
        full = self._files[-1]
        if not full.size:
            full.since = now
            return
        aside = self._path.with_name(f"{self._path.name}.{max(self._numbered(), default=0) + 1}")
        full.path.rename(aside)
        full.path = aside
        self._files.append(_File(self._path, now))
        # An entry of the index that points there is too old to be looked up.
        while self._files[0].until < now - KEEP_SECONDS:
            old = self._files.pop(0)
            os.close(old.descriptor)
            old.path.unlink(missing_ok=True)

    def _numbered(self) -> dict[int, Path]:
        """The files that were moved aside, by their numbers, the oldest first."""
        found = {}
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            number = path.name.removeprefix(f"{self._path.name}.")
            if number.isdecimal():
                found[int(number)] = path
        return dict(sorted(found.items()))

    def _open(self) -> list[_File]:
        """Open the files, the current one last, and index what counts; delete those in which nothing does."""
        now = self._clock()
        files = []
        for path in [*self._numbered().values(), self._path]:
            file = _File(path, now)
            self._scan(file, now - KEEP_SECONDS)
            if path != self._path and file.until < now - KEEP_SECONDS:
                os.close(file.descriptor)
                path.unlink()
            else:
                files.append(file)
        return files

    def _scan(self, file: _File, oldest: float) -> None:
        """Index the entries of `file` since `oldest`; cut off a last line that was never completed."""
        position = 0
        times: list[float] = []
        with file.path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # its process was killed while it wrote, or the disk was full
                    os.ftruncate(file.descriptor, position)
                    file.size = position
                    break
                try:
                    entry = _decode(line)
                except msgspec.MsgspecError:
                    entry = None  # half a line and the next one, from before a power cut
                if entry is not None:
                    times = [times[0] if times else entry.at, entry.at]
                    if entry.at >= oldest:
                        self._note(entry, file, position)
                position += len(line)
        if times:
            file.since, file.until = times
