"""Operations whose wallet another transaction has locked: they wait apart from the queue and delay no other wallet.

A wallet's operations keep their order, so none overtakes an earlier one of the same request. They are tried again with
growing pauses, and skipped again while the lock is taken. After some skips a wallet gets a turn: its operations queue
in the database for the lock, since otherwise a gateway that locks a busy wallet again and again would starve another.
That blocks the writer's connection meanwhile, so it is done for one wallet at a time, and rarely.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from billing.writer.entry import Entry

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.050  # seconds
SKIPS_BEFORE_TURN = 3
TURN_INTERVAL = 0.5
"""Seconds. A turn lasts at most as long as the connection's lock timeout, 0.1 s: a fifth of the other wallets' time."""


@dataclass(slots=True)
class Waiting:
    """The entries that wait for one wallet's lock, in order; `due_at` is on the monotonic clock."""

    entries: deque[Entry] = field(default_factory=deque)
    skips: int = 0
    due_at: float = 0.0


class LockedWallets:
    """The wallets that were found locked, each with its waiting entries; under None those that lock no wallet."""

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

    def add_behind(self, entry: Entry) -> bool:
        """Queue an entry behind those that wait for the same wallet; False, changing nothing, if none does."""
        waiting = self._waiting.get(entry.wallet) if self._waiting else None
        if waiting is None:
            return False
        entry.skips = max(entry.skips, 1)
        waiting.entries.append(entry)
        return True

    def put_back(self, entries: list[Entry]) -> None:
        """Put back entries, in order, that were tried and found their lock taken, and delay the next try."""
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
        """Take out and return, in order, the entries of the wallets that may be tried again now."""
        now = time.monotonic()
        due = [wallet for wallet, waiting in self._waiting.items() if waiting.due_at <= now]
        return [entry for wallet in due for entry in self._waiting.pop(wallet).entries]

    def take_turn(self) -> list[Entry]:
        """Take out and return the entries of the wallet whose turn it is to queue for its lock; mostly none."""
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
