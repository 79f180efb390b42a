"""uuid7: time-ordered ids (RFC 9562 §5.7), made by us, never taken from a client."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, date, datetime
from uuid import UUID

_LAST_MILLISECOND = 253_402_300_799_000  # the end of datetime's range; 48 bits reach a thousand years further
_REQUEST_ID = re.compile(
    r"(?:chatcmpl-|cmpl-|resp_|msg_|rs_|fco?_|item_)?([0-9a-f]{8}-?[0-9a-f]{4}-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12})"
    r"(?:_\w{1,12})?",
    re.IGNORECASE,
)


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


def moment_of(identifier: UUID) -> datetime:
    """Return when a uuid7 was made, to the millisecond, in UTC.

    The time in an id that a client made up may lie after the year 9999: then this is that year's last second.
    """
    return datetime.fromtimestamp(min(identifier.int >> 80, _LAST_MILLISECOND) / 1000, tz=UTC)


def day_of(identifier: UUID) -> date:
    """Return the UTC day in which a uuid7 was made: `day` of its usage record."""
    return moment_of(identifier).date()


def first_at(moment: datetime) -> UUID:
    """Return the least id that can have been made at `moment`, where a scan of an index of ids starts."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def request_id_in(text: str) -> UUID | None:
    """Return the request id that `text` is: a uuid7 with or without hyphens, or the id of an answer (``chatcmpl-…``,
    ``cmpl-…``, ``resp_…``, ``msg_…``) or of an answer's item (``msg_…_i0``). None for any other text.
    """
    found = _REQUEST_ID.fullmatch(text.strip())
    return UUID(found[1]) if found else None
