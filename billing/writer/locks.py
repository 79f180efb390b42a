"""Operations whose wallet somebody else has locked: they wait by themselves, and nobody waits behind them.

A wallet's operations keep their order, so no request's operation overtakes an earlier one of the same request. They
are tried again with growing pauses, skipping the lock if it isn't free. Now and then they take their turn in the
database's queue for the lock instead: otherwise a gateway that locks a busy wallet again and again would keep another
one out of it for ever. That holds the writer's connection for a moment, so it is done for one wallet at a time, and
rarely.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from billing.writer.entry import Entry

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.050
SKIPS_BEFORE_TURN = 3
TURN_INTERVAL = 0.5
"""A turn lasts as long as the connection's lock timeout, 0.1 s: at most a fifth of the others' time."""


@dataclass(slots=True)
class Waiting:
    """What waits for one lock, in order."""

    entries: deque[Entry] = field(default_factory=deque)
    skips: int = 0
    due_at: float = 0.0


class LockedWallets:
    """The wallets (None: of no wallet) that were found locked, with what waits for each."""

    def __init__(self) -> None:
        self._waiting: dict[UUID | None, Waiting] = {}
        self._next_turn_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def entries(self) -> list[Entry]:
        """Everything that waits."""
        return [entry for waiting in self._waiting.values() for entry in waiting.entries]

    @property
    def due_at(self) -> float:
        """When the next wallet may be tried again, on the monotonic clock."""
        return min(waiting.due_at for waiting in self._waiting.values())

    def keeps(self, entry: Entry) -> bool:
        """Take an entry whose wallet isn't due yet, behind those that wait for it; False if its wallet isn't here."""
        waiting = self._waiting.get(entry.wallet)
        if waiting is None:
            return False
        entry.skips = max(entry.skips, 1)
        waiting.entries.append(entry)
        return True

    def put_back(self, entries: list[Entry]) -> None:
        """Take entries, in order, that were tried and found their lock taken."""
        now = time.monotonic()
        found: dict[UUID | None, list[Entry]] = {}
        for entry in entries:
            found.setdefault(entry.wallet, []).append(entry)
        for wallet, mine in found.items():
            waiting = self._waiting.setdefault(wallet, Waiting())
            waiting.entries.extendleft(reversed(mine))
            waiting.skips = max(entry.skips for entry in mine)
            waiting.due_at = now + min(FIRST_PAUSE * 2 ** min(waiting.skips, 10), LONGEST_PAUSE)

    def take_due(self) -> list[Entry]:
        """Return what may be tried again now, in order: its wallets are forgotten here until they are put back."""
        now = time.monotonic()
        due = [wallet for wallet, waiting in self._waiting.items() if waiting.due_at <= now]
        return [entry for wallet in due for entry in self._waiting.pop(wallet).entries]

    def take_turn(self) -> list[Entry]:
        """Return what waits for the wallet whose turn it is to wait for its lock; mostly nothing."""
        now = time.monotonic()
        if not self._waiting or now < self._next_turn_at:
            return []
        wallet, waiting = max(self._waiting.items(), key=lambda item: item[1].skips)
        if waiting.skips < SKIPS_BEFORE_TURN:
            return []
        self._next_turn_at = now + TURN_INTERVAL
        return list(self._waiting.pop(wallet).entries)

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
