"""Requests that found their tenant's leases taken, by other gateways too: they get one in the order of their coming."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from billing.limits.types import Decision, Lease, Limited, RateStore, Take, Taken, Waiting
from gateway.errors.faults import draining

POLL_SECONDS = 0.25  # a hint makes it faster; a lease that nobody gave back ends without one


@dataclass(order=True, slots=True)
class _Waiter:
    """A waiting request, in the order of coming; `woken` is set when it may be worth asking again."""

    since: float
    woken: asyncio.Event = field(compare=False, default_factory=asyncio.Event)


class Turns:
    """Takes from a rate store, waiting for the lease where none is free.

    Of those of one tenant that wait in this gateway only the first asks, and speaks for all: the store lets nobody
    pass it who came later through another gateway.
    """

    def __init__(self, store: RateStore, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._queues: dict[str, list[_Waiter]] = {}
        self._is_closed = False
        self.on_waited: Callable[[float], object] = lambda _: None  # told how long each waiting request waited

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._queues.values()))

    async def take(self, takes: Sequence[Take], lease: Lease, *, since: float, until: float) -> Decision:
        """Take everything, waiting for the lease until the loop's time is `until`; a request came at `since`.

        Anything but the lease that is short is answered at once. Raise a 503 Refusal when the process is about to stop.
        """
        if lease.key not in self._queues:
            decision = await self._store.take(takes, lease)
            if not _is_short_of_leases(decision) or _now() >= until:
                return decision
        waiter, began = _Waiter(since), _now()
        queue = self._queues.setdefault(lease.key, [])
        insort(queue, waiter)
        has_it = False
        try:
            decision = await self._take_in_turn(takes, lease, waiter, queue, until)
            has_it = isinstance(decision, Taken)
        finally:
            self.on_waited(_now() - began)
            queue.remove(waiter)
            if queue:
                queue[0].woken.set()
            else:
                del self._queues[lease.key]
            if not has_it:
                await self._store.give_back(lease)  # the place in the order of all gateways
        return decision

    def wake(self, key: str) -> None:
        """Have the first who waits for a lease under `key` ask again now."""
        if queue := self._queues.get(key):
            queue[0].woken.set()

    def close(self) -> None:
        """Refuse all waiting requests at once, and let no later one wait."""
        self._is_closed = True
        for queue in self._queues.values():
            for waiter in queue:
                waiter.woken.set()

    async def _take_in_turn(
        self, takes: Sequence[Take], lease: Lease, waiter: _Waiter, queue: list[_Waiter], until: float
    ) -> Decision:
        while True:
            if self._is_closed:
                raise draining()
            waiter.woken.clear()
            is_over = _now() >= until
            if queue[0] is waiter or is_over:
                said = Waiting(round((_now() - waiter.since) * 1_000_000), len(queue))
                decision = await self._store.take(takes, lease, said)
                if is_over or not _is_short_of_leases(decision):
                    return decision
            # The first asks now and then, the others when they have become the first.
            patience = min(until, _now() + self._poll_seconds) if queue[0] is waiter else until
            try:
                async with asyncio.timeout_at(patience):
                    await waiter.woken.wait()
            except TimeoutError:
                pass  # asked again above, or refused


def _is_short_of_leases(decision: Decision) -> bool:
    return isinstance(decision, Limited) and decision.name == "concurrency"


def _now() -> float:
    return asyncio.get_running_loop().time()
