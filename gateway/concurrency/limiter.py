"""Limits how many requests of a tenant run in this process at once, with a bounded queue for each tenant.

How many run in all gateways together is a matter of leases, for which `turns` lets them wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from billing.limits.types import Limited
from gateway.errors.faults import draining, refusal_of_limit
from gateway.errors.refusal import Refusal

QUEUE_SECONDS = 10.0
QUEUE_LENGTH = 256
QUEUE_BYTES = 16 << 20
SHORTEST_RETRY, LONGEST_RETRY = 1.0, 60.0
NEWEST_WEIGHT = 0.2  # weight of the last interval between two ends in their moving average


class Queued(Protocol):
    """A request's queue: equal names share one queue, of which `concurrency` requests run at once."""

    @property
    def queue(self) -> str: ...

    @property
    def concurrency(self) -> int: ...


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiting request: `place` gets its result when the request may run."""

    place: asyncio.Future[None]
    concurrency: int
    size: int
    is_in: bool = False


@dataclass(slots=True)
class _Tenant:
    """One tenant's requests; `interval` is how many seconds lie between two of their ends while some wait."""

    running: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)
    size: int = 0
    left_at: float | None = None
    interval: float | None = None


class ConcurrencyLimiter:
    """Lets as many requests of each tenant in as its plan runs at once; some more wait, in the order of their coming.

    It comes before all expensive work, so that a flood costs neither tokenising nor a round trip. Each tenant has a
    queue of its own, of at most `length` requests and `size` bytes, in which a request waits at most `seconds`; no
    request waits for another tenant's. A place that gets free goes to the request that has waited longest.
    """

    def __init__(self, seconds: float = QUEUE_SECONDS, length: int = QUEUE_LENGTH, size: int = QUEUE_BYTES) -> None:
        self._seconds = seconds
        self._length = length
        self._size = size
        self._tenants: dict[str, _Tenant] = {}
        self._is_closed = False
        self.on_waited: Callable[[float], object] = lambda _: None  # told how long each waiting request waited

    def __len__(self) -> int:
        return sum(tenant.running for tenant in self._tenants.values())

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(len(tenant.waiting) for tenant in self._tenants.values())

    def waits_until(self, arrived_at: float) -> float:
        """Return until when a request that came at `arrived_at` may wait, here and elsewhere (the loop's clock)."""
        return arrived_at + self._seconds if self._length else arrived_at

    async def enter(self, principal: Queued, size: int = 0) -> None:
        """Count one more request of the principal's tenant, waiting for a place; `size` is what it has in memory.

        Raise a 429 Refusal when the queue is full or no place came in time, 503 when the process is about to stop.
        A caller that is cancelled while waiting is out of the queue.
        """
        if self._is_closed:
            raise draining()
        tenant = self._tenants.get(principal.queue)
        if tenant is None:
            tenant = self._tenants[principal.queue] = _Tenant()
        if tenant.running < principal.concurrency and not tenant.waiting:
            tenant.running += 1
            return
        if len(tenant.waiting) >= self._length or tenant.size + size > self._size:
            raise self._full(tenant)
        loop = asyncio.get_running_loop()
        waiter, began = _Waiter(loop.create_future(), principal.concurrency, size), loop.time()
        tenant.waiting.append(waiter)
        tenant.size += size
        try:
            async with asyncio.timeout(self._seconds):
                await waiter.place
        except TimeoutError:
            refusal = self._full(tenant)
            self._give_up(principal.queue, waiter)
            raise refusal from None
        except BaseException:
            self._give_up(principal.queue, waiter)
            raise
        finally:
            self.on_waited(loop.time() - began)

    def leave(self, principal: Queued) -> None:
        """Count one less, and let the request run that has waited longest."""
        tenant = self._tenants[principal.queue]
        tenant.running -= 1
        now = asyncio.get_running_loop().time()
        if tenant.waiting and tenant.left_at is not None:
            took = now - tenant.left_at
            last = took if tenant.interval is None else tenant.interval
            tenant.interval = last + NEWEST_WEIGHT * (took - last)
        tenant.left_at = now
        self._let_in(principal.queue, tenant)

    def close(self) -> None:
        """Refuse all waiting requests at once, and all later ones."""
        self._is_closed = True
        for tenant in self._tenants.values():
            for waiter in tenant.waiting:
                if not waiter.place.done():
                    waiter.place.set_exception(draining())

    def _give_up(self, identifier: str, waiter: _Waiter) -> None:
        """Forget a waiter; a place that it got in this very moment goes on to the next."""
        tenant = self._tenants.get(identifier)
        if tenant is None:
            return
        if waiter.is_in:
            tenant.running -= 1
        elif waiter in tenant.waiting:
            tenant.waiting.remove(waiter)
            tenant.size -= waiter.size
        self._let_in(identifier, tenant)

    def _let_in(self, identifier: str, tenant: _Tenant) -> None:
        while tenant.waiting and tenant.running < tenant.waiting[0].concurrency and not self._is_closed:
            waiter = tenant.waiting.popleft()
            tenant.size -= waiter.size
            if not waiter.place.done():  # done: cancelled, and about to give up
                tenant.running += 1
                waiter.is_in = True
                waiter.place.set_result(None)
        if not tenant.running and not tenant.waiting:
            self._tenants.pop(identifier, None)

    def _full(self, tenant: _Tenant) -> Refusal:
        """Return the refusal that says when a place may be free: once those who wait now have had theirs."""
        seconds = SHORTEST_RETRY if tenant.interval is None else (len(tenant.waiting) + 1) * tenant.interval
        retry = min(max(seconds, SHORTEST_RETRY), LONGEST_RETRY)
        return refusal_of_limit(Limited("concurrency", round(retry * 1_000_000), ()))
