"""Limits by owner: counts that refuse (`Cap`), and waits: for a place among a tenant's requests (`ConcurrencyLimiter`),
for a lease or credit that its others hold (`Turns`), and after everybody else (`Pace`).
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from billing.limits.types import Decision, Lease, Limited, RateStore, Take, Taken, Waiting
from gateway.errors.faults import draining, refusal_of_limit
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
        """The owner's share."""
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


ABOUT_SECONDS = 2.0
"""For so long after another request came more of them are expected."""
REST = 5.0
"""How many times as long as a line took to begin the next one waits then: lines take a sixth of the time at most."""
LONGEST_REST = 1.0


class Pace:
    """Spaces the beginnings of lines, whose work at the door and in the ledger others would wait for."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._other_at = float("-inf")
        self._next_at = float("-inf")

    def other_came(self) -> None:
        """Note a request that is no line of a batch."""
        self._other_at = self._clock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Begin a line within this: after those that came before, and after a rest where others are about."""
        async with self._turn:
            now = self._clock()
            if now - self._other_at < ABOUT_SECONDS and now < self._next_at:
                await self._sleep(self._next_at - now)
            began = self._clock()
            try:
                yield
            finally:
                now = self._clock()
                self._next_at = now + min(REST * (now - began), LONGEST_REST)


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
    """Lets as many requests of each tenant into this process as its plan runs at once; some more wait, in the order of
    their coming. How many run in all gateways together is a matter of leases, for which `Turns` lets them wait.

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
        """The number of waiting requests."""
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


T = TypeVar("T")

POLL_SECONDS = 0.25  # a hint makes it faster; a lease that nobody gave back ends without one


@dataclass(order=True, slots=True)
class _Turn:
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
        self._queues: dict[str, list[_Turn]] = {}
        self._is_closed = False
        self.on_waited: Callable[[float], object] = lambda _: None  # told how long each waiting request waited

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
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
        waiter, began = _Turn(since, key), _now()
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

    def _enter(self, waiter: _Turn) -> None:
        insort(self._queues.setdefault(waiter.key, []), waiter)

    def _leave(self, waiter: _Turn) -> None:
        queue = self._queues[waiter.key]
        queue.remove(waiter)
        if queue:
            queue[0].woken.set()
        else:
            del self._queues[waiter.key]

    def _move(self, waiter: _Turn, key: str | None) -> None:
        if key is not None and key != waiter.key:
            self._leave(waiter)
            waiter.key = key
            self._enter(waiter)

    def _earlier(self, waiter: _Turn, keys: Sequence[str]) -> str | None:
        """Return another of the queues in which somebody waits who came before."""
        others = (key for key in keys if key != waiter.key and key in self._queues)
        return next((key for key in others if self._queues[key][0] < waiter), None)

    async def _take_in_turn(
        self,
        keys: Sequence[str],
        ask: Callable[[Waiting | None], Awaitable[T]],
        short_of: Callable[[T], str | None],
        waiter: _Turn,
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


def credit_key(wallet: UUID, budget: int = 0) -> str:
    """Return the key under which requests wait for what others of the wallet, or of its budget of that number, hold."""
    return f"credit:{wallet}:{budget}" if budget else f"credit:{wallet}"


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
