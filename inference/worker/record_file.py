"""One file of the record: rows that are appended with one write, and an index from id to its latest row.

    ┌────────┬─────────┬───────┬─────┬────────┬─────┬───────────────┐
    │ magic  │ crc 32  │ body  │ kind│ time   │ id  │ body          │ next row …
    │ 4 bytes│ 4 bytes │ 2     │ 1   │ 4      │ 16  │ `body` bytes  │
    └────────┴─────────┴───────┴─────┴────────┴─────┴───────────────┘

The index is a table of (half an id, place) with open addressing, twelve bytes a slot. The current file's is in memory;
that of a file which was moved aside is written beside it and mapped, so the kernel keeps what is looked at.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAGIC = b"SLR2"
MOST_IDS = 131_000  # in one file: its table never has more than 2¹⁸ slots, so growing takes milliseconds
_LEAST_SLOTS = 1 << 10
_SPREAD, _ALL = 0x9E3779B97F4A7C15, (1 << 64) - 1  # 2⁶⁴ divided by the golden ratio

_head = struct.Struct("<IHBI16s")
_after_crc = struct.Struct("<HBI16s")
_shelf = struct.Struct("<4sIIIIQ")  # magic, slots, ids, since, until, bytes of the file that is indexed

log = logging.getLogger(__name__)


class Row(NamedTuple):
    """One row, as read: `at` is in whole Unix seconds."""

    kind: int
    at: int
    key: bytes
    body: bytes


def pack_row(kind: int, at: int, key: bytes, body: bytes) -> bytes:
    """Return a row's bytes."""
    rest = _after_crc.pack(len(body), kind, at, key) + body
    return zlib.crc32(rest).to_bytes(4, "little") + rest


class _Table:
    """Half ids and places, in memory (growing) or mapped from a file."""

    def __init__(self, halves: array[int] | memoryview, places: array[int] | memoryview, used: int) -> None:
        self.halves = halves
        self.places = places
        self.used = used

    @classmethod
    def empty(cls, slots: int = _LEAST_SLOTS) -> _Table:
        return cls(array("Q", bytes(8 * slots)), array("I", bytes(4 * slots)), 0)

    def slot(self, half: int) -> int:
        """Where `half` stands or would stand; a free slot has place 0."""
        mask = len(self.places) - 1
        # Ids of one process differ in few bits: multiplied, all of them reach the upper ones.
        slot = (half * _SPREAD & _ALL) >> (64 - mask.bit_length())
        while self.places[slot] and self.halves[slot] != half:
            slot = (slot + 1) & mask
        return slot

    def put(self, half: int, place: int) -> None:
        slot = self.slot(half)
        if not self.places[slot]:
            self.used += 1
        self.halves[slot], self.places[slot] = half, place
        if 2 * self.used > len(self.places):
            larger = _Table.empty(2 * len(self.places))
            for each, where in zip(self.halves, self.places, strict=True):
                if where:
                    larger.put(each, where)
            self.halves, self.places = larger.halves, larger.places


class RecordFile:
    """See the module. `since` and `until` are the times of its first and its last row, `ids` how many ids it names."""

    def __init__(self, path: Path, *, is_mine: bool = True) -> None:
        """Open or make the file; what was never completed at its end is cut off, where it `is_mine`."""
        self.path = path
        self.since = self.until = 0
        self.size = 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if is_mine else os.O_RDONLY
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._table = _Table.empty()
        self._map: mmap.mmap | None = None
        if is_mine and not self._take_from_shelf():
            self._scan()

    @property
    def ids(self) -> int:
        return self._table.used

    def append(self, rows: Sequence[bytes], now: int) -> None:
        """Append packed rows of the moment `now` with one write; raise OSError, the file unchanged, if it can't be."""
        if not self.size:
            rows = [MAGIC, *rows]
        data = b"".join(rows)
        written = os.write(self._descriptor, data)
        if written != len(data):
            # A full disk. Cut the torn rows off, so that what follows is whole again.
            os.ftruncate(self._descriptor, self.size)
            raise OSError(f"the record {self.path} took {written} of {len(data)} bytes")
        place = self.size
        for row in rows:
            if len(row) > len(MAGIC):
                self._table.put(_half(row[_head.size - 16 : _head.size]), place)
            place += len(row)
        if not self.since:
            self.since = now
        self.size, self.until = place, max(self.until, now)

    def find(self, key: bytes) -> Row | None:
        """The latest row of `key`."""
        place = self._table.places[self._table.slot(_half(key))]
        row = self._read(place) if place else None
        return row if row is not None and row.key == key else None

    def rows(self) -> Iterator[Row]:
        """Every whole row, in order."""
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        for _, row in _parse(data):
            yield row

    def shelve(self) -> None:
        """Keep the index mapped from a file beside this one instead of in memory; no more rows come."""
        if self._map is not None:
            return
        table = self._table
        with self._index_path().open("wb") as index:
            index.write(_shelf.pack(MAGIC, len(table.places), table.used, self.since, self.until, self.size))
            index.write(bytes(table.halves))
            index.write(bytes(table.places))
        self._take_from_shelf()

    def _take_from_shelf(self) -> bool:
        """Map the index that `shelve` has written; False where there is none of this very file."""
        size = os.fstat(self._descriptor).st_size
        try:
            with self._index_path().open("rb") as index:
                mapped = mmap.mmap(index.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # there is none, or it is empty
            return False
        view = memoryview(mapped)
        if len(view) < _shelf.size:
            return False
        magic, slots, used, since, until, indexed = _shelf.unpack_from(view)
        middle = _shelf.size + 8 * slots
        if magic != MAGIC or indexed != size or len(view) != middle + 4 * slots:
            return False
        self._map, self.since, self.until, self.size = mapped, since, until, size
        self._table = _Table(view[_shelf.size : middle].cast("Q"), view[middle:].cast("I"), used)
        return True

    def move_aside(self, path: Path) -> None:
        """Give the file another name; no more rows come."""
        self.path.rename(path)
        self.path = path
        self.shelve()

    def delete(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._index_path().unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._table = _Table.empty()
            self._map = None  # the mapping ends with its last view
        os.close(self._descriptor)

    def _index_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.index")

    def _read(self, place: int) -> Row:
        data = os.pread(self._descriptor, 256, place)
        length = _head.unpack_from(data)[1]
        if _head.size + length > len(data):
            data = os.pread(self._descriptor, _head.size + length, place)
        _, length, kind, at, key = _head.unpack_from(data)
        return Row(kind, at, key, data[_head.size : _head.size + length])

    def _scan(self) -> None:
        """Index what is there; cut off what isn't whole: its process was killed while it wrote, or the power went."""
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, size, 0)
        end = len(MAGIC) if data.startswith(MAGIC) else 0
        for place, row in _parse(data):
            self._table.put(_half(row.key), place)
            self.since = self.since or row.at
            self.until = max(self.until, row.at)
            end = place + _head.size + len(row.body)
        if end != size:
            log.warning("the record %s has %d bytes that are no rows; they are cut off", self.path, size - end)
            os.ftruncate(self._descriptor, end)
        self.size = end


def _parse(data: bytes) -> Iterator[tuple[int, Row]]:
    """The rows of a file's bytes and where they stand, up to the first that isn't whole."""
    place = len(MAGIC)
    if not data.startswith(MAGIC):
        return
    while place + _head.size <= len(data):
        crc, length, kind, at, key = _head.unpack_from(data, place)
        end = place + _head.size + length
        if end > len(data) or zlib.crc32(data[place + 4 : end]) != crc:
            return
        yield place, Row(kind, at, key, data[place + _head.size : end])
        place = end


def _half(key: bytes) -> int:
    # The end of a uuid7 is random; its beginning is the time.
    return int.from_bytes(key[8:], "little")
