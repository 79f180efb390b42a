"""The room before the model: who may wait, and in which order they are called."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from inference.core.fairness import FairQueue, Prices, Queued
from inference.errors import DrainingError, OverloadedError

T = TypeVar("T", bound=Queued)


class WaitingRoom(Generic[T]):
    """A fair queue with a bound for all and one for each tenant, closed to newcomers while `draining`.

    The bounds count what waits; requests that come back after a preemption are never turned away.
    """

    def __init__(self, most: int, most_per_tenant: int, prices: Prices) -> None:
        self.queue: FairQueue[T] = FairQueue(prices)
        self.draining = False
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._present: Counter[str] = Counter()  # requests of each tenant that haven't ended
        self._prune_at = 64

    def enter(self, item: T) -> None:
        """Queue a new request; raise `DrainingError` or `OverloadedError`."""
        if self.draining:
            raise DrainingError("the engine is about to stop")
        if len(self.queue) >= self._most:
            raise OverloadedError(f"{len(self.queue)} requests are waiting already")
        if self.queue.waiting(item.tenant) >= self._most_per_tenant:
            raise OverloadedError("too many requests of this tenant are waiting already", code="tenant_queue_full")
        self.queue.push(item)
        self._present[item.tenant] += 1

    def leave(self, item: T) -> None:
        """Count a request as ended; now and then forget tenants that are gone."""
        self._present[item.tenant] -= 1
        if not self._present[item.tenant]:
            del self._present[item.tenant]
        if self.queue.tenants() > self._prune_at:
            self.queue.prune(self._present)
            self._prune_at = 2 * self.queue.tenants() + 64
