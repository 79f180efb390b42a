"""Readers of an answer that another gateway makes: one follower here feeds one log for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Protocol
from uuid import UUID

import structlog

from gateway.durable.answers import Found, Stored
from gateway.durable.log import Batch, EventLog, Head, events_of
from gateway.errors.refusal import Refusal

LOOK_SECONDS = 1.0  # between two looks at the answer's row
LINGER_SECONDS = 5.0
HEAD_SECONDS = 30.0  # without a sign of the answer: proxies close connections on which nothing comes

log = structlog.get_logger(__name__)


class Rows(Protocol):
    """The store of an answer's row, as a follower needs it."""

    async def look(self, run: UUID) -> Found | None: ...

    async def read(self, run: UUID) -> Stored | None: ...


def key_in_use() -> Refusal:
    """The 409 for an answer that is being made elsewhere, of which nothing can be seen from here."""
    text = "The answer of this idempotency key is being made at another gateway: ask again."
    return Refusal(409, "idempotency_key_in_use", text, headers={"retry-after": "1"}, should_retry=True)


def maker_lost() -> Refusal:
    """The 503 for an answer whose gateway is lost, or gave it up: it isn't charged."""
    text = "The gateway that made this answer is lost, and the answer isn't charged: send the request again."
    return Refusal(503, "answer_lost", text, headers={"retry-after": "1"})


class Follower:
    """The answer of a run at another gateway: its `log` gets what `mirrored` yields, and at the end all that is stored.

    A look at its row also tells that gateway that somebody reads. `take` counts the bytes of the log.
    """

    def __init__(
        self,
        run: UUID,
        event_log: EventLog,
        rows: Rows,
        *,
        mirrored: Callable[[UUID], AsyncGenerator[tuple[Head, Batch], None]] | None,
        take: Callable[[int], object],
    ) -> None:
        self.log = event_log
        self._run = run
        self._rows = rows
        self._mirrored = mirrored
        self._take = take
        self._readers = 0
        self._clock = asyncio.get_running_loop().time
        self._wanted_at = self._clock()
        self._mirror_ended = asyncio.Event()

    @contextmanager
    def reading(self) -> Iterator[EventLog]:
        """Yield the log to one more reader."""
        self._readers += 1
        try:
            yield self.log
        finally:
            self._readers -= 1
            self.want()

    def want(self) -> None:
        """Go on for `LINGER_SECONDS`: somebody is about to read, or may come back."""
        self._wanted_at = self._clock()

    async def run(self) -> None:
        """Fill the log until its end, or until nobody reads it any more."""
        reading: asyncio.Task[None] | None = None
        since = self._clock()
        try:
            while True:
                try:
                    found = await self._rows.look(self._run)
                    stored = await self._rows.read(self._run) if found is not None and found.is_stored else None
                except Refusal as refusal:
                    self.log.end(refusal)
                    return
                if stored is not None:
                    self._complete(stored)
                elif found is None:
                    self.log.end(maker_lost())
                elif self.log.head is None and self._clock() - since > HEAD_SECONDS:
                    self.log.end(key_in_use())
                if self.log.is_ended:
                    return
                if reading is None and self._mirrored is not None:  # its gateway knows of us by now
                    reading = asyncio.create_task(self._read_mirror())
                await self._pause()
                if not self._readers and self._clock() - self._wanted_at > LINGER_SECONDS:
                    self.log.end(key_in_use())
                    return
        finally:
            if reading is not None:
                reading.cancel()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._mirror_ended.wait()
                self._mirror_ended.clear()
        except TimeoutError:
            pass

    def _complete(self, stored: Stored) -> None:
        if self.log.head is None:
            self.log.begin(stored.head)
        events = events_of(stored.body) if stored.head.is_stream else [stored.body]
        self.log.append(*events[self.log.next - self.log.first :])
        self.log.end()

    async def _read_mirror(self) -> None:
        assert self._mirrored is not None
        try:
            async with aclosing(self._mirrored(self._run)) as batches:
                async for head, batch in batches:
                    if batch.first > self.log.next or self.log.is_ended:
                        return  # some are missing: all are there at the end
                    events = batch.events[self.log.next - batch.first :]
                    self._take(sum(map(len, events)))
                    if self.log.head is None:
                        self.log.begin(head)
                    self.log.append(*events)
            self._mirror_ended.set()
        except (OSError, TimeoutError) as error:
            log.warning("mirror_not_read", run=str(self._run), error=str(error) or type(error).__name__)
        except Refusal as refusal:
            self.log.end(refusal)
