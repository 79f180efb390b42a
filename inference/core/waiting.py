"""The requests that wait for an engine: how many may, and who goes where there is no room for all."""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

from inference.core.fairness import FairQueue, Prices, Queued
from inference.errors import DrainingError, OverloadedError

YIELDED = "the engine is busy, and others go first that had fewer requests waiting for it, or a higher priority"


class Yielding(Queued, Protocol):
    """A request; it `may_yield` as long as nothing of it has run, and may so be refused though it was taken."""

    @property
    def may_yield(self) -> bool: ...


R = TypeVar("R", bound=Yielding)


class WaitingQueue(Generic[R]):
    """A fair queue with a bound for all and one for each tenant; it takes no new requests while `draining`.

    The bounds count waiting requests; one that comes back after a preemption is always taken. Where all may wait
    that there is room for, the longest queue is shortened (longest queue drop: Suter et al., 1999), so that no few
    tenants keep the others out, and first those of a lower band, so that none keep out whom they wait for anyway.
    Further answers of a request count for their tenant alone, whose own they delay: else a few requests of many
    answers each would fill the queue of all. `weights` has the weight of each tenant with a request that hasn't
    ended, and `total_weight` their sum.
    """

    def __init__(self, most: int, most_per_tenant: int, prices: Prices) -> None:
        self.queue: FairQueue[R] = FairQueue(prices)
        self.draining = False
        self.most = most
        self.most_per_tenant = most_per_tenant
        self.weights: dict[str, int] = {}
        self.total_weight = 0
        self._present: Counter[str] = Counter()  # requests of each tenant that haven't ended
        self._prune_at = 64

    def enter(self, item: R, *, bounded: bool = True) -> R | None:
        """Queue a new request; raise `DrainingError` or `OverloadedError`, unless it isn't `bounded`: a part.

        Return the request that gave its place to it, which the caller has to end as `YIELDED`, or None.
        """
        yielding = self._room(item) if bounded else None
        self.queue.push(item, is_part=not bounded)
        self._count(item)
        return yielding

    def pass_through(self, item: R) -> None:
        """Count a new request that needn't wait, since none does."""
        self.queue.pass_through(item)
        self._count(item)

    def _count(self, item: R) -> None:
        self._present[item.tenant] += 1
        self.total_weight += item.weight - self.weights.get(item.tenant, 0)
        self.weights[item.tenant] = item.weight

    def _room(self, item: R) -> R | None:
        """Return what has to go for `item`, None where nothing has to; raise where there is no room for it."""
        if self.draining:
            raise DrainingError("the engine is about to stop")
        if self.queue.waiting(item.tenant) >= self.most_per_tenant:
            raise OverloadedError("too many requests of this tenant are waiting already", code="tenant_queue_full")
        if self.queue.counted < self.most:
            return None
        yielding = next((one for one in self.queue.behind(item) if one.may_yield), None)
        if yielding is None:
            raise OverloadedError(f"{self.queue.counted} requests are waiting already")
        return yielding

    def leave(self, item: R) -> None:
        """Count a request as ended; now and then forget tenants without requests."""
        self._present[item.tenant] -= 1
        if not self._present[item.tenant]:
            del self._present[item.tenant]
            self.total_weight -= self.weights.pop(item.tenant)
        if self.queue.tenants() > self._prune_at:
            self.queue.prune(self._present)
            self._prune_at = 2 * self.queue.tenants() + 64
