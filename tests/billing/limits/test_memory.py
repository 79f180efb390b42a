from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec

from billing.limits.memory import MemoryRateStore, monotonic_us
from billing.limits.types import Lease, Take, Taken
from tests.billing.limits.contract import SECOND, RateStoreContract, bucket, lease
from tests.billing.limits.contract import Clock as ContractClock


class TestMemoryRateStore(RateStoreContract):
    @asynccontextmanager
    async def open_store(self, clock):
        store = MemoryRateStore(clock=clock)
        yield store
        await store.close()


async def test_memory_is_bounded_by_what_is_alive():
    clock = ContractClock()
    store = MemoryRateStore(clock=clock)
    for n in range(5_000):
        clock.advance(SECOND)
        await store.take([Take(bucket(key=f"{n}:requests"), 5)], lease(f"{n}", ttl_us=5 * SECOND))
    assert len(store) < 50


async def test_live_buckets_survive_the_dropping():
    clock = ContractClock()
    store = MemoryRateStore(clock=clock)
    await store.adjust(bucket(key="debtor:requests"), 100_000)
    for n in range(500):
        await store.take([Take(bucket(key=f"{n}:requests"), 1)])
        clock.advance(SECOND)
    refused = await store.take([Take(bucket(key="debtor:requests"), 1)])
    assert refused.states[0].remaining == 0


async def test_the_default_clock_moves():
    before = monotonic_us()
    store = MemoryRateStore()
    await store.take([Take(bucket(), 1)])
    assert monotonic_us() >= before


async def test_an_ended_lease_that_was_not_dropped_yet_is_no_place():
    clock = ContractClock()
    store = MemoryRateStore(clock=clock)
    keys = [Lease(key=f"{n}:concurrency", limit=1, holder="a", ttl_us=SECOND) for n in range(20)]
    for one in keys:
        assert isinstance(await store.take([], one), Taken)
    clock.advance(SECOND)
    assert isinstance(await store.take([], msgspec.structs.replace(keys[-1], holder="b")), Taken)
