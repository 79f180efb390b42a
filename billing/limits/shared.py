"""The rate store of one of several gateways: Redis while it answers, this gateway's share of each limit while not.

What a tenant can get beyond its plan when Redis goes away and comes back is bounded: docs/scaling.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from billing.limits import gcra
from billing.limits.memory import MemoryRateStore, monotonic_us
from billing.limits.redis.connection import MOST_TOGETHER, RedisConnection, StoreLostError
from billing.limits.redis.store import RedisRateStore
from billing.limits.redis.wire import Command
from billing.limits.types import Bucket, Decision, Lease, Take, Taken, Waiting

_Key = tuple[str, str]  # of a lease: its tenant's key, and its holder


class SharedRateStore:
    """A `RateStore` that always answers.

    `gateways` returns how many gateways share the limits: while Redis is lost each one grants that part of a limit, at
    least 1. Leases are kept in both places, so that a running request counts in either: when Redis is back it is told
    of those that run, and of those that ended meanwhile.
    """

    def __init__(
        self,
        connection: RedisConnection,
        gateways: Callable[[], int],
        *,
        on_change: Callable[[bool], object] = lambda _: None,
        clock: Callable[[], int] = monotonic_us,
        shared_clock: Callable[[], int] | None = None,
    ) -> None:
        """`on_change` is called with `is_shared` whenever that changed.

        `clock` is this process's, `shared_clock` replaces that of Redis; both in microseconds.
        """
        self._connection = connection
        self._shared = RedisRateStore(connection, shared_clock)
        self._local = MemoryRateStore(clock)
        self._gateways = gateways
        self._clock = clock
        self._running: dict[_Key, Lease] = {}
        self._known: set[_Key] = set()  # those of `_running` that Redis was told of, and may still know
        self._untold: set[_Key] = set()  # those that a new connection has still to tell it of
        self._ended: dict[_Key, tuple[Lease, int]] = {}  # Redis may think they run; and when it ends them by itself
        connection.on_change = on_change
        connection.greeting = self._greeting

    @property
    def is_shared(self) -> bool:
        """True while limits are counted for all gateways together, False while each counts its share."""
        return self._connection.is_up

    @property
    def trouble(self) -> str:
        """Why limits are not quite what the plans say just now, or an empty string."""
        return "" if self.is_shared else "Redis does not answer: each gateway grants its share of the limits"

    async def take(self, takes: Sequence[Take], lease: Lease | None = None, waiting: Waiting | None = None) -> Decision:
        """Take everything or nothing, from Redis or from this gateway's share."""
        if self._connection.is_up:
            try:
                decision = await self._shared.take(takes, lease, waiting)
            except StoreLostError:
                if lease is not None:
                    self._note_ended(lease)  # it may have been given
            else:
                if isinstance(decision, Taken) and lease is not None:
                    self._local.hold(lease)
                    self._running[_key(lease)] = lease
                    self._known.add(_key(lease))
                return decision
        return await self._take_share(takes, lease)

    async def adjust(self, bucket: Bucket, delta: int) -> None:
        """Take or give back `delta` units where buckets are counted now."""
        try:
            await self._shared.adjust(bucket, delta)
        except StoreLostError:
            await self._local.adjust(self._share_of(bucket), delta)

    async def renew(self, lease: Lease) -> None:
        """Let the lease end `ttl_us` from now, if it is still held; Redis learns of it where it has forgotten."""
        if self._local.holds(lease):
            self._local.hold(lease)
            if self._connection.is_up:
                self._connection.send(self._shared.holding(lease))

    async def give_back(self, lease: Lease, takes: Sequence[Take] = ()) -> None:
        """End the lease, or the waiting for it, and adjust the buckets of `takes` where they are counted now."""
        await self._local.give_back(lease)
        key = _key(lease)
        self._running.pop(key, None)
        self._untold.discard(key)
        was_known = key in self._known
        self._known.discard(key)
        try:
            asked = self._connection.send(self._shared.end(lease, takes))
        except StoreLostError:
            if was_known:
                self._note_ended(lease)
            for take in takes:
                await self._local.adjust(self._share_of(take.bucket), take.cost)
        else:
            asked.add_done_callback(lambda done: self._note_ended(lease) if done.exception() else None)

    async def close(self) -> None:
        """Send what is on its way, and close the connection."""
        await self._shared.close()
        await self._local.close()

    async def _take_share(self, takes: Sequence[Take], lease: Lease | None) -> Decision:
        if (never := gcra.impossible(takes)) is not None:
            return never
        shares = [Take(self._share_of(take.bucket), take.cost) for take in takes]
        # A request that the plan allows and that is larger than the share: a full share is taken, the rest is a debt.
        fitting = [Take(take.bucket, min(take.cost, take.bucket.burst)) for take in shares]
        most = None if lease is None else msgspec.structs.replace(lease, limit=self._part(lease.limit))
        decision = await self._local.take(fitting, most)
        if isinstance(decision, Taken):
            for share, taken in zip(shares, fitting, strict=True):
                if share.cost > taken.cost:
                    await self._local.adjust(share.bucket, share.cost - taken.cost)
            if lease is not None:
                self._running[_key(lease)] = lease
                self._untold.add(_key(lease))
                self._ended.pop(_key(lease), None)
        return decision

    def _share_of(self, bucket: Bucket) -> Bucket:
        return msgspec.structs.replace(bucket, limit=self._part(bucket.limit), burst=self._part(bucket.burst))

    def _part(self, limit: int) -> int:
        return max(limit // max(self._gateways(), 1), 1)

    def _note_ended(self, lease: Lease) -> None:
        now = self._clock()
        while self._ended and next(iter(self._ended.values()))[1] <= now:
            del self._ended[next(iter(self._ended))]
        self._ended[_key(lease)] = (lease, now + lease.ttl_us)

    def _greeting(self) -> Iterator[list[Command]]:
        """Yield what shows that Redis counts, then what it is told of leases that ended and of those that run.

        Each part is done with once the next is asked for.
        """
        yield [self._shared.proof()]
        self._untold = set(self._running)
        while self._ended or self._untold:
            ended = list(islice(self._ended.items(), MOST_TOGETHER))
            untold = list(islice(self._untold, MOST_TOGETHER - len(ended)))
            running = [self._running[key] for key in untold]
            self._known.update(untold)
            yield [
                *(self._shared.end(lease) for _, (lease, _) in ended),
                *(self._shared.holding(lease) for lease in running if self._local.holds(lease)),
            ]
            for key, _ in ended:
                self._ended.pop(key, None)
            self._untold.difference_update(untold)


def _key(lease: Lease) -> _Key:
    return lease.key, lease.holder
