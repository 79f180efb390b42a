"""Requests that found all of their tenant's taken, its leases or its credit: they get some in the order of coming."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from billing.limits.types import Decision, Lease, Limited, RateStore, Take, Taken, Waiting
from gateway.errors.faults import draining

T = TypeVar("T")

POLL_SECONDS = 0.25  # a hint makes it faster; a lease that nobody gave back ends without one


@dataclass(order=True, slots=True)
class _Waiter:
    """A waiting request, in the order of coming; `woken` is set when it may be worth asking again."""

    since: float
    woken: asyncio.Event = field(compare=False, default_factory=asyncio.Event)


class Turns:
    """Asks for requests, and again while the answer is that others have it all.

    Of those under one key that wait in this gateway only the first asks, and may speak for all.
    """

    def __init__(self, poll_seconds: float = POLL_SECONDS) -> None:
        self._poll_seconds = poll_seconds
        self._queues: dict[str, list[_Waiter]] = {}
        self._is_closed = False
        self.on_waited: Callable[[float], object] = lambda _: None  # told how long each waiting request waited

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._queues.values()))

    async def take(
        self,
        key: str,
        ask: Callable[[Waiting | None], Awaitable[T]],
        is_taken: Callable[[T], bool],
        *,
        since: float,
        until: float,
    ) -> T:
        """Return the first answer to `ask` that isn't `is_taken`, or the last one before the loop's time is `until`.

        The request came at `since`; `ask` is told how long it has waited and with how many others, once it waits. Raise
        a 503 Refusal when the process is about to stop.
        """
        if key not in self._queues:
            answer = await ask(None)
            if not is_taken(answer) or _now() >= until:
                return answer
        waiter, began = _Waiter(since), _now()
        queue = self._queues.setdefault(key, [])
        insort(queue, waiter)
        try:
            return await self._take_in_turn(ask, is_taken, waiter, queue, until)
        finally:
            self.on_waited(_now() - began)
            queue.remove(waiter)
            if queue:
                queue[0].woken.set()
            else:
                del self._queues[key]

    def wake(self, key: str) -> None:
        """Have the first who waits under `key` ask again now."""
        if queue := self._queues.get(key):
            queue[0].woken.set()

    def close(self) -> None:
        """Refuse all waiting requests at once, and let no later one wait."""
        self._is_closed = True
        for queue in self._queues.values():
            for waiter in queue:
                waiter.woken.set()

    async def _take_in_turn(
        self,
        ask: Callable[[Waiting | None], Awaitable[T]],
        is_taken: Callable[[T], bool],
        waiter: _Waiter,
        queue: list[_Waiter],
        until: float,
    ) -> T:
        while True:
            if self._is_closed:
                raise draining()
            waiter.woken.clear()
            is_over = _now() >= until
            if queue[0] is waiter or is_over:
                said = Waiting(round((_now() - waiter.since) * 1_000_000), len(queue))
                answer = await ask(said)
                if is_over or not is_taken(answer):
                    return answer
            # The first asks now and then, the others when they have become the first.
            patience = min(until, _now() + self._poll_seconds) if queue[0] is waiter else until
            try:
                async with asyncio.timeout_at(patience):
                    await waiter.woken.wait()
            except TimeoutError:
                pass  # asked again above, or refused


def credit_key(wallet: UUID, budget: UUID | None = None) -> str:
    """Return the key under which requests wait for what others of the wallet, or of its budget, hold."""
    return f"credit:{wallet}" if budget is None else f"credit:{wallet}:{budget}"


async def lease_in_turn(
    turns: Turns, store: RateStore, takes: Sequence[Take], lease: Lease, *, since: float, until: float
) -> Decision:
    """Take everything, waiting for the lease where none is free: the store lets nobody pass who came later through
    another gateway. Anything but the lease that is short is answered at once.
    """
    is_known = False  # to the store, as one that waits

    async def ask(said: Waiting | None) -> Decision:
        nonlocal is_known
        is_known = is_known or said is not None
        return await store.take(takes, lease, said)

    decision: Decision | None = None
    try:
        decision = await turns.take(lease.key, ask, _is_short_of_leases, since=since, until=until)
    finally:
        if is_known and not isinstance(decision, Taken):
            await store.give_back(lease)  # the place in the order of all gateways
    return decision


def _is_short_of_leases(decision: Decision) -> bool:
    return isinstance(decision, Limited) and decision.name == "concurrency"


def _now() -> float:
    return asyncio.get_running_loop().time()
