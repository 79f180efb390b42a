"""When those who wait for the writer's answers stop waiting."""

from __future__ import annotations

import asyncio
from collections import deque

from billing.writer.entry import Entry


class Deadlines:
    """Fails entries that have no answer at their deadline, with one timer for all: nearly all are answered long before.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Entry) -> None:
        """Fail `entry` at its deadline unless it has its answer then."""
        entries = self._entries
        while entries and entries[0].future.done():
            entries.popleft()
        entries.append(entry)
        if self._timer is None or entry.deadline < self._timer.when():
            self._look_at(entry.deadline)

    def close(self) -> None:
        """Fail nothing any more."""
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for entry in self._entries:
            if entry.deadline <= now:
                entry.be_late()
        self._entries = deque(entry for entry in self._entries if not entry.future.done())
        if self._entries:
            self._look_at(min(entry.deadline for entry in self._entries))
