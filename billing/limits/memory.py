"""The rate store of a single gateway process: everything in its memory, every call one step of its event loop."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from billing.limits import gcra
from billing.limits.types import Bucket, Decision, Lease, Take, Taken, Waiting

# As many as a call adds, and a lease more, so expired ones can't pile up: a plan's and a key's buckets, one lease.
_BUCKETS_EXAMINED = 4
_LEASES_EXAMINED = 2


def monotonic_us() -> int:
    """Return microseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000


class MemoryRateStore:
    """A `RateStore` in memory. Calls never suspend, which makes each atomic on its event loop.

    Full buckets and ended leases are dropped while it is used: an absent bucket is a full one.
    """

    trouble = ""

    def __init__(self, clock: Callable[[], int] = monotonic_us) -> None:
        """`clock` returns microseconds and never goes back."""
        self._clock = clock
        self._tats: OrderedDict[str, int] = OrderedDict()
        self._leases: OrderedDict[str, dict[str, int]] = OrderedDict()  # key → holder → end

    def __len__(self) -> int:
        """Return how many buckets and lease keys are kept."""
        return len(self._tats) + len(self._leases)

    async def take(self, takes: Sequence[Take], lease: Lease | None = None, waiting: Waiting | None = None) -> Decision:
        """Take everything or nothing; of several reasons to refuse, the one that takes longest to pass is named.

        `waiting` changes nothing: there is no other gateway.
        """
        now = self._clock()
        self._drop_expired(now)
        if (never := gcra.impossible(takes)) is not None:
            return never
        lease_wait = 0 if lease is None else self._lease_wait(lease, now)
        decision, after = gcra.decide(takes, self._tats, lease_wait, now)
        if isinstance(decision, Taken):
            self._tats.update(after)
            if lease is not None:
                self._lease_until(lease, now + lease.ttl_us)
        return decision

    def hold(self, lease: Lease) -> None:
        """Have the lease held from now on, whatever its limit: another store has given it."""
        self._lease_until(lease, self._clock() + lease.ttl_us)

    def holds(self, lease: Lease) -> bool:
        """True while the lease is held."""
        return self._leases.get(lease.key, {}).get(lease.holder, 0) > self._clock()

    async def adjust(self, bucket: Bucket, delta: int) -> None:
        """Take `delta` more units, into debt if need be; give back when negative, never beyond full."""
        now = self._clock()
        self._drop_expired(now)
        self._tats[bucket.key] = gcra.taken_at(self._tats.get(bucket.key, now), now, gcra.cost_us(bucket, delta))

    async def renew(self, lease: Lease) -> None:
        """Let the lease end `ttl_us` from now, if it is still held."""
        if self.holds(lease):
            self.hold(lease)

    async def give_back(self, lease: Lease, takes: Sequence[Take] = ()) -> None:
        """End the lease, if it is held, and adjust the buckets of `takes`."""
        for take in takes:
            await self.adjust(take.bucket, take.cost)
        holders = self._leases.get(lease.key, {})
        holders.pop(lease.holder, None)
        if not holders:
            self._leases.pop(lease.key, None)

    async def close(self) -> None:
        """Forget everything."""
        self._tats.clear()
        self._leases.clear()

    def _lease_until(self, lease: Lease, end: int) -> None:
        """Store the lease behind the others of its key, which keeps them in the order of their ends."""
        holders = self._leases.setdefault(lease.key, {})
        holders.pop(lease.holder, None)
        holders[lease.holder] = end

    def _lease_wait(self, lease: Lease, now: int) -> int:
        """Return 0 when `lease` can be had now, else the microseconds until enough of the others have ended by
        themselves.
        """
        holders = self._leases.get(lease.key, {})
        if len(holders) < lease.limit:
            return 0
        ends = sorted(end for holder, end in holders.items() if end > now and holder != lease.holder)
        if len(ends) < lease.limit:
            return 0
        return ends[len(ends) - lease.limit] - now

    def _drop_expired(self, now: int) -> None:
        """Check the few entries that were checked longest ago, and drop the expired ones."""
        for _ in range(min(_BUCKETS_EXAMINED, len(self._tats))):
            key, tat = self._tats.popitem(last=False)
            if tat > now:
                self._tats[key] = tat
        for _ in range(min(_LEASES_EXAMINED, len(self._leases))):
            key, holders = self._leases.popitem(last=False)
            while holders and next(iter(holders.values())) <= now:
                del holders[next(iter(holders))]
            if holders:
                self._leases[key] = holders
