"""Limits per owner in this process: sockets, bytes being received, connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from gateway.errors.refusal import Refusal

Owner = TypeVar("Owner", bound=Hashable)


class Cap(Generic[Owner]):
    """Counts what each owner has taken and not given back: at most `most`; beyond it `take` raises `refusal()`."""

    def __init__(self, most: int, refusal: Callable[[], Refusal]) -> None:
        self.most = most
        self._refusal = refusal
        self._taken: Counter[Owner] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def taken(self, owner: Owner) -> int:
        """How much `owner` has."""
        return self._taken[owner]

    def take(self, owner: Owner, amount: int = 1) -> None:
        """Count `amount` more of `owner`'s; raise the refusal and count nothing when that would be too much."""
        if self._taken[owner] + amount > self.most:
            raise self._refusal()
        self._taken[owner] += amount
        self._total += amount

    def give_back(self, owner: Owner, amount: int = 1) -> None:
        """Count `amount` less."""
        self._taken[owner] -= amount
        self._total -= amount
        if not self._taken[owner]:
            del self._taken[owner]

    @contextmanager
    def share(self, owner: Owner) -> Iterator[Callable[[int], None]]:
        """Yield a `take(amount)` for `owner`; what it took is given back when the block ends."""
        taken = 0

        def take(amount: int = 1) -> None:
            nonlocal taken
            self.take(owner, amount)
            taken += amount

        try:
            yield take
        finally:
            if taken:
                self.give_back(owner, taken)
