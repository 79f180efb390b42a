"""When lines of batches begin in this gateway: one after the other, and seldom while other requests come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

ABOUT_SECONDS = 2.0
"""For so long after another request came more of them are expected."""
REST = 5.0
"""How many times as long as a line took to begin the next one waits then: lines take a sixth of the time at most."""
LONGEST_REST = 1.0


class Pace:
    """Spaces the beginnings of lines, whose work at the door and in the ledger others would wait for."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._other_at = float("-inf")
        self._next_at = float("-inf")

    def other_came(self) -> None:
        """Note a request that is no line of a batch."""
        self._other_at = self._clock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Begin a line within this: after those that came before, and after a rest where others are about."""
        async with self._turn:
            now = self._clock()
            if now - self._other_at < ABOUT_SECONDS and now < self._next_at:
                await self._sleep(self._next_at - now)
            began = self._clock()
            try:
                yield
            finally:
                now = self._clock()
                self._next_at = now + min(REST * (now - began), LONGEST_REST)
