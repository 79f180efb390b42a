"""The events of one answer, numbered, for readers that come and go while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from gateway.errors.refusal import Refusal

_END = b"\n\n"
RUN_NUMBERS = 1_000_000_000  # of one run: those of the next begin behind them


class Head(msgspec.Struct, frozen=True):
    """The status and headers of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    is_stream: bool  # of server-sent events; else the whole body is one event


class Batch(msgspec.Struct, frozen=True):
    """Events that follow each other; `first` is the number of the first."""

    first: int
    events: Sequence[bytes]


class EventLog:
    """The events of an answer from number `first` on, and its end. Readers get what there is in one batch, so that one
    who is slow costs no more than one who isn't. One that `lags` is filled from elsewhere, where readers may be
    further.
    """

    def __init__(self, first: int = 0, *, lags: bool = False) -> None:
        self.first = first
        self.lags = lags
        self.head: Head | None = None
        self.is_ended = False
        self.failure: Refusal | None = None
        self._events: list[bytes] = []
        self._changed: asyncio.Future[None] | None = None

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self.first + len(self._events)

    @property
    def events(self) -> Sequence[bytes]:
        """All events so far."""
        return self._events

    def begin(self, head: Head) -> None:
        """Give the answer its head."""
        self.head = head
        self._wake()

    def append(self, *events: bytes) -> None:
        """Add events at the end."""
        self._events.extend(events)
        self._wake()

    def end(self, failure: Refusal | None = None) -> None:
        """Let nothing follow; `failure` is why there is no answer, or no more of it."""
        self.is_ended, self.failure = True, failure
        self._wake()

    async def begun(self) -> Head:
        """Wait for the head; raise the failure of an answer that has none."""
        while self.head is None:
            if self.is_ended:
                raise self.failure or RuntimeError("the answer ended without a head")
            await self._next_change()
        return self.head

    async def reached(self, number: int) -> None:
        """Wait until event `number` is there, or none will be."""
        while self.next <= number and not self.is_ended:
            await self._next_change()

    async def read(self, after: int | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the events behind number `after` (None: all), those that come included, until the end.

        Raises the failure where the answer ends with one.
        """
        number = self.first if after is None else after + 1
        while True:
            if number < self.next:
                batch = Batch(max(number, self.first), self._events[max(0, number - self.first) :])
                number = self.next
                yield batch
                continue
            if self.is_ended:
                if self.failure is not None:
                    raise self.failure
                return
            await self._next_change()

    async def whole(self) -> bytes:
        """Wait for the end and return all events in one piece; raise the failure of an answer that has one."""
        while not self.is_ended:
            await self._next_change()
        if self.failure is not None:
            raise self.failure
        return b"".join(self._events)

    async def _next_change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)


def events_of(data: bytes) -> list[bytes]:
    """Return the server-sent events in `data`, without comments."""
    return [block + _END for block in data.split(_END) if block and not block.startswith(b":")]
