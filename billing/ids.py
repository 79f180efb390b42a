"""uuid7: time-ordered ids (RFC 9562 §5.7), made by us, never taken from a client."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime
from uuid import UUID


def uuid7(milliseconds: int | None = None) -> UUID:
    """Return a new id whose first 48 bits are Unix milliseconds and whose other 74 free bits are random."""
    stamp = time.time_ns() // 1_000_000 if milliseconds is None else milliseconds
    value = (stamp & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


_LAST_MILLISECOND = 253_402_300_799_000  # where dates end; 48 bits go on for a thousand years


def day_of(identifier: UUID) -> date:
    """Return the UTC day in which a uuid7 was made: the partition key of what it names.

    One that a client made up may lie after the last day that there is: then it is that one.
    """
    return datetime.fromtimestamp(min(identifier.int >> 80, _LAST_MILLISECOND) / 1000, tz=UTC).date()
