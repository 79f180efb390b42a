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
    """A waiting request in the queue `key`, in the order of coming; `woken` is set when asking may be worth it."""

    since: float
    key: str = field(compare=False)
    woken: asyncio.Event = field(compare=False, default_factory=asyncio.Event)


class Turns:
    """Asks for requests, and again while the answer is that others have it all.

    A request waits in one queue at a time: that of what it is short of. Of those in a queue of this gateway only the
    first asks, and may speak for all.
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
        keys: Sequence[str],
        ask: Callable[[Waiting | None], Awaitable[T]],
        short_of: Callable[[T], str | None],
        *,
        since: float,
        until: float,
    ) -> T:
        """Return the first answer to `ask` that is `short_of` nothing, or the last one before the loop's `until`.

        `short_of` says which of `keys` an answer is short of, because others have it. The request came at `since`;
        `ask` is told how long it has waited and with how many others, once it waits. Raise a 503 Refusal when the
        process is about to stop.
        """
        key = next((one for one in keys if one in self._queues), None)
        if key is None:
            answer = await ask(None)
            key = short_of(answer)
            if key is None or _now() >= until:
                return answer
        waiter, began = _Waiter(since, key), _now()
        self._enter(waiter)
        try:
            return await self._take_in_turn(keys, ask, short_of, waiter, until)
        finally:
            self.on_waited(_now() - began)
            self._leave(waiter)

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

    def _enter(self, waiter: _Waiter) -> None:
        insort(self._queues.setdefault(waiter.key, []), waiter)

    def _leave(self, waiter: _Waiter) -> None:
        queue = self._queues[waiter.key]
        queue.remove(waiter)
        if queue:
            queue[0].woken.set()
        else:
            del self._queues[waiter.key]

    def _move(self, waiter: _Waiter, key: str | None) -> None:
        if key is not None and key != waiter.key:
            self._leave(waiter)
            waiter.key = key
            self._enter(waiter)

    def _earlier(self, waiter: _Waiter, keys: Sequence[str]) -> str | None:
        """Return another of the queues in which somebody waits who came before."""
        others = (key for key in keys if key != waiter.key and key in self._queues)
        return next((key for key in others if self._queues[key][0] < waiter), None)

    async def _take_in_turn(
        self,
        keys: Sequence[str],
        ask: Callable[[Waiting | None], Awaitable[T]],
        short_of: Callable[[T], str | None],
        waiter: _Waiter,
        until: float,
    ) -> T:
        while True:
            if self._is_closed:
                raise draining()
            waiter.woken.clear()
            is_over = _now() >= until
            if self._queues[waiter.key][0] is waiter and not is_over:
                self._move(waiter, self._earlier(waiter, keys))
            queue = self._queues[waiter.key]
            if queue[0] is waiter or is_over:
                said = Waiting(round((_now() - waiter.since) * 1_000_000), len(queue))
                answer = await ask(said)
                key = short_of(answer)
                if is_over or key is None:
                    return answer
                self._move(waiter, key)
            # The first asks now and then, the others when they have become the first.
            is_first = self._queues[waiter.key][0] is waiter
            patience = min(until, _now() + self._poll_seconds) if is_first else until
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

    def short_of(decision: Decision) -> str | None:
        return lease.key if isinstance(decision, Limited) and decision.name == "concurrency" else None

    decision: Decision | None = None
    try:
        decision = await turns.take((lease.key,), ask, short_of, since=since, until=until)
    finally:
        if is_known and not isinstance(decision, Taken):
            await store.give_back(lease)  # the place in the order of all gateways
    return decision


def _now() -> float:
    return asyncio.get_running_loop().time()
