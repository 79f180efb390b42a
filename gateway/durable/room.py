"""The bound on the bytes of the answers kept for one tenant until they expire."""

from __future__ import annotations

import time
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import Count, Sum
from django.db.models.functions import Length

from base import clock
from gateway.durable.models import KeptAnswer
from gateway.errors.refusal import Refusal

LINE = "line:"  # names of answers to lines of batches begin so: SLUICE_MAX_OUTPUT_BYTES bounds these

ROW_BYTES = 1024  # about what a row and its indexes take beside the answer
COUNT_AGAIN_SECONDS = 60.0
MOST_TENANTS = 10_000  # whose counts are remembered
_PARTS = 16  # one of these parts of the room is stored before it is counted again: so much each gateway can exceed it


class _Count(msgspec.Struct):
    """The bytes `counted` in the database, at which moment of this process, and what it stored `since`, at most."""

    counted: int
    at: float
    since: int = 0


class Room:
    """Says for which tenants there is room in the database for one more kept answer.

    To add all of a tenant's answers up takes the database long where they are many. So their sum is remembered, and
    what is stored here is added to it. It is made anew once that is a good part of all room, before anybody is refused,
    and once a minute while there is no room.
    """

    def __init__(self) -> None:
        self._counts: dict[UUID, _Count] = {}

    def is_due(self, tenant: UUID) -> bool:
        """Whether `require` has to ask the database, or would refuse."""
        most, count = settings.SLUICE_MOST_KEPT_BYTES, self._counts.get(tenant)
        return count is None or count.since >= most // _PARTS or count.counted + count.since >= most

    def require(self, tenant: UUID) -> None:
        """Raise the 429 Refusal where the tenant's answers take as much as they may."""
        if self.is_due(tenant) and not self._is_full(tenant):
            self._count(tenant)
        if self._is_full(tenant):
            raise no_room()

    def note(self, tenant: UUID, size: int) -> None:
        """Count an answer of at most `size` bytes that was stored here."""
        if (count := self._counts.get(tenant)) is not None:
            count.since += ROW_BYTES + size

    def _is_full(self, tenant: UUID) -> bool:
        """Whether there was no room when they were last counted, if that is less than a minute ago."""
        count = self._counts.get(tenant)
        if count is None or count.counted < settings.SLUICE_MOST_KEPT_BYTES:
            return False
        return time.monotonic() - count.at < COUNT_AGAIN_SECONDS

    def _count(self, tenant: UUID) -> None:
        counted = stored_bytes(tenant)
        self._counts.pop(tenant, None)
        if len(self._counts) >= MOST_TENANTS:
            self._counts.pop(next(iter(self._counts)), None)
        self._counts[tenant] = _Count(counted, time.monotonic())


ROOM = Room()
"""That of this process: its gateway and its management API add to the same rows."""


def stored_bytes(tenant: UUID) -> int:
    """Return how many bytes of the database the tenant's kept answers take, about; those to lines of batches apart."""
    mine = KeptAnswer.objects.unscoped().filter(tenant=tenant, expires_at__gt=clock.now()).exclude(key__startswith=LINE)
    found = mine.aggregate(rows=Count("id"), bodies=Sum(Length("body")))
    return int(found["rows"] * ROW_BYTES + (found["bodies"] or 0))


def no_room() -> Refusal:
    """The 429 for an answer that there is no room to keep."""
    text = (
        "The answers that are kept for you take as much room as they may, until the oldest expire after 24 hours. "
        "Nothing ran: what need not be kept can be asked without an idempotency key."
    )
    return Refusal(429, "too_much_kept", text, should_retry=False)
