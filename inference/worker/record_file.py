"""One file of the record: rows that are appended with one write, and an index from id to its latest row.

    ┌────────┬─────────┬───────┬─────┬────────┬─────┬───────────────┐
    │ magic  │ crc 32  │ body  │ kind│ time   │ id  │ body          │ next row …
    │ 4 bytes│ 4 bytes │ 2     │ 1   │ 4      │ 16  │ `body` bytes  │
    └────────┴─────────┴───────┴─────┴────────┴─────┴───────────────┘

The index is a hash table of (last 8 bytes of an id, offset of its latest row) with open addressing, twelve bytes a
slot. The current file's is in memory; that of a rotated file is written beside it and mapped, so that only the pages in
use take memory.
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
MAX_IDS = 131_000  # in one file: its table never has more than 2¹⁸ slots, so growing takes milliseconds
_MIN_SLOTS = 1 << 10
_FIBONACCI, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1  # Fibonacci hashing: 2⁶⁴ divided by the golden ratio

_head = struct.Struct("<IHBI16s")
_after_crc = struct.Struct("<HBI16s")
_index_head = struct.Struct("<4sIIIIQ")  # magic, slots, ids, since, until, bytes of the file that is indexed

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


class _HashTable:
    """Offsets by the tail of an id (its last 8 bytes), in memory (growing) or mapped from a file (read only)."""

    def __init__(self, tails: array[int] | memoryview, offsets: array[int] | memoryview, used: int) -> None:
        self.tails = tails
        self.offsets = offsets
        self.used = used

    @classmethod
    def empty(cls, slots: int = _MIN_SLOTS) -> _HashTable:
        return cls(array("Q", bytes(8 * slots)), array("I", bytes(4 * slots)), 0)

    def slot(self, tail: int) -> int:
        """Return the slot of `tail`, or the free one that it would take; a free slot has offset 0."""
        mask = len(self.offsets) - 1
        # Ids of one process differ in few bits: multiplied, all of them reach the upper ones.
        slot = (tail * _FIBONACCI & _MASK) >> (64 - mask.bit_length())
        while self.offsets[slot] and self.tails[slot] != tail:
            slot = (slot + 1) & mask
        return slot

    def put(self, tail: int, offset: int) -> None:
        slot = self.slot(tail)
        if not self.offsets[slot]:
            self.used += 1
        self.tails[slot], self.offsets[slot] = tail, offset
        if 2 * self.used > len(self.offsets):
            larger = _HashTable.empty(2 * len(self.offsets))
            for each, where in zip(self.tails, self.offsets, strict=True):
                if where:
                    larger.put(each, where)
            self.tails, self.offsets = larger.tails, larger.offsets


class RecordFile:
    """`since` and `until` are the times of its first and its last row, in whole Unix seconds."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        """Open the file; when `writable`, make a missing one and cut an incomplete row off its end."""
        self.path = path
        self.since = self.until = 0
        self.size = 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if writable else os.O_RDONLY
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._table = _HashTable.empty()
        self._map: mmap.mmap | None = None
        if writable and not self._map_index():
            self._scan()

    @property
    def ids(self) -> int:
        """How many different ids its rows have."""
        return self._table.used

    def append(self, rows: Sequence[bytes], now: int) -> None:
        """Append packed rows with one write; raise OSError, the file unchanged, when that fails.

        `now` is in whole Unix seconds.
        """
        if not self.size:
            rows = [MAGIC, *rows]
        data = b"".join(rows)
        written = os.write(self._descriptor, data)
        if written != len(data):
            # The disk is full. Without the torn rows, those that follow can be read.
            os.ftruncate(self._descriptor, self.size)
            raise OSError(f"the record {self.path} took {written} of {len(data)} bytes")
        offset = self.size
        for row in rows:
            if len(row) > len(MAGIC):
                self._table.put(_tail(row[_head.size - 16 : _head.size]), offset)
            offset += len(row)
        if not self.since:
            self.since = now
        self.size, self.until = offset, max(self.until, now)

    def find(self, key: bytes) -> Row | None:
        """Return the latest row of `key`, or None."""
        offset = self._table.offsets[self._table.slot(_tail(key))]
        row = self._read(offset) if offset else None
        return row if row is not None and row.key == key else None

    def rows(self) -> Iterator[Row]:
        """Yield every complete row, in order."""
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        for _, row in _parse(data):
            yield row

    def write_index(self) -> None:
        """Write the index to a file beside this one and map it, instead of keeping it in memory; no more rows come."""
        if self._map is not None:
            return
        table = self._table
        with self._index_path().open("wb") as index:
            index.write(_index_head.pack(MAGIC, len(table.offsets), table.used, self.since, self.until, self.size))
            index.write(bytes(table.tails))
            index.write(bytes(table.offsets))
        self._map_index()

    def _map_index(self) -> bool:
        """Map the index that `write_index` wrote; False when there is none for this state of the file."""
        size = os.fstat(self._descriptor).st_size
        try:
            with self._index_path().open("rb") as index:
                mapped = mmap.mmap(index.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # there is none, or it is empty
            return False
        view = memoryview(mapped)
        if len(view) < _index_head.size:
            return False
        magic, slots, used, since, until, indexed = _index_head.unpack_from(view)
        middle = _index_head.size + 8 * slots
        if magic != MAGIC or indexed != size or len(view) != middle + 4 * slots:
            return False
        self._map, self.since, self.until, self.size = mapped, since, until, size
        self._table = _HashTable(view[_index_head.size : middle].cast("Q"), view[middle:].cast("I"), used)
        return True

    def rotate(self, path: Path) -> None:
        """Rename the file to `path` and write its index; no more rows come."""
        self.path.rename(path)
        self.path = path
        self.write_index()

    def delete(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._index_path().unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._table = _HashTable.empty()
            self._map = None  # the mapping ends with its last view
        os.close(self._descriptor)

    def _index_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.index")

    def _read(self, offset: int) -> Row:
        data = os.pread(self._descriptor, 256, offset)
        length = _head.unpack_from(data)[1]
        if _head.size + length > len(data):
            data = os.pread(self._descriptor, _head.size + length, offset)
        _, length, kind, at, key = _head.unpack_from(data)
        return Row(kind, at, key, data[_head.size : _head.size + length])

    def _scan(self) -> None:
        """Index the rows; cut off an incomplete end, which a killed process or a power cut left."""
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, size, 0)
        end = len(MAGIC) if data.startswith(MAGIC) else 0
        for offset, row in _parse(data):
            self._table.put(_tail(row.key), offset)
            self.since = self.since or row.at
            self.until = max(self.until, row.at)
            end = offset + _head.size + len(row.body)
        if end != size:
            log.warning("the record %s has %d bytes that are not rows; they are cut off", self.path, size - end)
            os.ftruncate(self._descriptor, end)
        self.size = end


def _parse(data: bytes) -> Iterator[tuple[int, Row]]:
    """The rows in a file's bytes with their offsets, up to the first incomplete one."""
    offset = len(MAGIC)
    if not data.startswith(MAGIC):
        return
    while offset + _head.size <= len(data):
        crc, length, kind, at, key = _head.unpack_from(data, offset)
        end = offset + _head.size + length
        if end > len(data) or zlib.crc32(data[offset + 4 : end]) != crc:
            return
        yield offset, Row(kind, at, key, data[offset + _head.size : end])
        offset = end


def _tail(key: bytes) -> int:
    # The last bytes of a uuid7 are random; the first are the time.
    return int.from_bytes(key[8:], "little")
