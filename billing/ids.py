"""uuid7: time-ordered ids (RFC 9562 §5.7), made by us, never taken from a client."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime
from uuid import UUID

_LAST_MILLISECOND = 253_402_300_799_000  # where dates end; 48 bits go on for a thousand years


def uuid7(milliseconds: int | None = None) -> UUID:
    """Return a new id: 48 bits of Unix milliseconds, 12 of the fraction of the millisecond, and 62 random ones.

    The fraction (RFC 9562 §6.2, method 3) keeps ids in the order in which a process makes them; for given
    `milliseconds` it is random.
    """
    nanoseconds = time.time_ns()
    random = int.from_bytes(os.urandom(10), "big")
    if milliseconds is None:
        stamp, fraction = nanoseconds // 1_000_000, nanoseconds % 1_000_000 * 4096 // 1_000_000
    else:
        stamp, fraction = milliseconds, random >> 68
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | fraction << 64 | 0x2 << 62 | random & (1 << 62) - 1
    return UUID(int=value)


def day_of(identifier: UUID) -> date:
    """Return the UTC day in which a uuid7 was made: the partition key of what it names.

    One that a client made up may lie after the last day that there is: then it is that one.
    """
    return datetime.fromtimestamp(min(identifier.int >> 80, _LAST_MILLISECOND) / 1000, tz=UTC).date()
