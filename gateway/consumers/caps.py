"""How many websockets one tenant or user may have open in this process: each costs memory while it says nothing."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from gateway.errors.refusal import Refusal

MOST_OPEN = 256


class Doors:
    """Counts open sockets by owner."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._open: Counter[UUID] = Counter()

    def enter(self, owner: UUID) -> None:
        """Count one more socket of `owner`; a Refusal (429) when it has too many."""
        if self._open[owner] >= self._most:
            raise Refusal(429, "too_many_connections", f"{self._most} of your websockets are open already.")
        self._open[owner] += 1

    def leave(self, owner: UUID) -> None:
        """Count one less."""
        self._open[owner] -= 1
        if not self._open[owner]:
            del self._open[owner]

    def __len__(self) -> int:
        return self._open.total()
