"""How soon this gateway answers one that asks much of what nothing pays for: refusals, and pages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

RATE = 50.0
"""Answers a second for each owner, behind the first ones."""
BURST = 200
LONGEST = 5.0
"""Seconds that an answer waits at most."""
MOST_WAITING = 32
"""Answers of an owner that wait at the same time: what waits keeps a connection."""
MOST_OWNERS = 10_000

Owner = TypeVar("Owner", bound=Hashable)


class Patience(Generic[Owner]):
    """Spaces what each owner gets beyond its first ones: the wait costs its own connection and nobody else."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due: dict[Owner, float] = {}  # when as many as were answered would have been, one after the other
        self._waiting: Counter[Owner] = Counter()

    async def wait(self, owner: Owner) -> bool:
        """Return at once, or when it is the turn of one more for `owner`; False, at once, where too many of its wait
        already.
        """
        now = self._clock()
        due = max(self._due.get(owner, now), now)
        seconds = due - BURST / RATE - now
        if seconds > 0 and self._waiting[owner] >= MOST_WAITING:
            return False
        self._due[owner] = min(due + 1 / RATE, now + BURST / RATE + LONGEST)
        if len(self._due) > MOST_OWNERS:
            self._due = {one: until for one, until in self._due.items() if until > now}
        if seconds > 0:
            self._waiting[owner] += 1
            try:
                await self._sleep(seconds)
            finally:
                self._waiting[owner] -= 1
                if not self._waiting[owner]:
                    del self._waiting[owner]
        return True
