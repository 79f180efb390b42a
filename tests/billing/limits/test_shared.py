"""Limits when Redis is killed, frozen, emptied and back: always some, within the bound that docs/scaling.md states."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from billing.limits.redis import connection
from billing.limits.redis.connection import RedisConnection
from billing.limits.redis.store import SCRIPTS
from billing.limits.shared import SharedRateStore
from billing.limits.types import Impossible, Limited, Take, Taken
from tests.billing.limits.contract import SECOND, RateStoreContract, bucket, credit, lease
from tests.billing.limits.contract import Clock as ContractClock

BURST = 10
HOURLY = bucket(limit=BURST, period_us=3600 * SECOND, burst=BURST)  # nothing comes back while a test runs


@asynccontextmanager
async def gateway(server, gateways=2, patience=5.0, clock=None):
    """The store of one of `gateways` gateways."""
    to_redis = RedisConnection(server.url, SCRIPTS, patience)
    clocks = {} if clock is None else {"clock": clock, "shared_clock": clock}
    store = SharedRateStore(to_redis, lambda: gateways, **clocks)
    await to_redis.open()
    try:
        yield store
    finally:
        await store.close()


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - a connection's own loop is what is waited for
            await asyncio.sleep(0.005)


async def taken(stores, count, *takes, **leases):
    """Return how many of `count` requests, asked through each of the stores in turn, were let in."""
    answers = [await store.take(list(takes) or [Take(HOURLY, 1)]) for _ in range(count) for store in stores]
    return sum(isinstance(answer, Taken) for answer in answers)


async def places(stores, limit, name, count=20):
    """Ask for leases through each store in turn; return those that were given, with their store."""
    asked = [(store, lease(f"{name}{n}-{i}", limit=limit)) for n in range(count) for i, store in enumerate(stores)]
    return [(store, one) for store, one in asked if isinstance(await store.take([], one), Taken)]


class TestSharedRateStore(RateStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server):
        self.server = redis_server

    @asynccontextmanager
    async def open_store(self, clock):
        self.server.flush()
        async with gateway(self.server, clock=clock) as store:
            yield store


class TestAloneWithoutRedis(RateStoreContract):
    """The share of the only gateway is the whole limit."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server):
        self.server = redis_server
        self.server.kill()

    @asynccontextmanager
    async def open_store(self, clock):
        async with gateway(self.server, gateways=1, clock=clock) as store:
            yield store


async def test_burst_with_redis_killed_and_back_is_what_the_documentation_says(redis_server):
    async with gateway(redis_server) as first, gateway(redis_server) as second:
        stores = [first, second]
        assert await taken(stores, BURST) == BURST, "exactly as with one gateway"
        redis_server.kill()
        assert await taken(stores, BURST) == BURST, "a burst in shares, and no more however long it lasts"
        assert await taken(stores, BURST) == 0
        assert (first.is_shared, second.is_shared) == (False, False)
        redis_server.start_again()
        await until(lambda: first.is_shared and second.is_shared)
        assert await taken(stores, BURST) == BURST, "a Redis that begins empty"
        assert await taken(stores, BURST) == 0


async def test_comings_and_goings_of_redis_add_no_more_than_the_shares_have(redis_server):
    async with gateway(redis_server, patience=0.05) as first, gateway(redis_server, patience=0.05) as second:
        stores, total = [first, second], 0
        for _ in range(3):
            total += await taken(stores, BURST)
            redis_server.freeze()
            total += await taken(stores, BURST)
            redis_server.thaw()
            await until(lambda: first.is_shared and second.is_shared)
        assert total == 2 * BURST, "once in Redis, which kept what it knew, and once in the shares"


async def test_redis_that_dies_while_nobody_asks_is_noticed(redis_server, monkeypatch):
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.01)
    async with gateway(redis_server) as store:
        redis_server.kill()
        await until(lambda: not store.is_shared)


async def test_leases_with_redis_killed_are_within_the_documented_bound(redis_server):
    limit = 6
    async with gateway(redis_server) as first, gateway(redis_server) as second:
        running = await places([first, first, second], limit, "a")
        assert len(running) == limit, "exactly as with one gateway"
        redis_server.kill()
        more = await places([first, second], limit, "b")
        assert len(more) == 1, "each fills its share of 3: four run in the first, two in the second"
        redis_server.start_again()
        await until(lambda: first.is_shared and second.is_shared)
        assert await places([first, second], limit, "c") == [], "Redis was told what runs"
        for store, one in [*running, *more]:
            await store.give_back(one)
        assert len(await places([first, second], limit, "d")) == limit


async def test_leases_that_ended_while_redis_was_silent_are_free_when_it_is_back(redis_server):
    async with gateway(redis_server, patience=0.02) as store:
        running = await places([store], 3, "a", count=3)
        redis_server.freeze()
        assert isinstance(await store.take([], lease("late", limit=3)), Limited), "the share is 1, and 3 run"
        for _, one in running:
            await store.give_back(one)
        redis_server.thaw()
        await until(lambda: store.is_shared)
        assert len(await places([store], 3, "b")) == 3


async def test_lease_that_redis_forgot_is_told_again_by_renewing_it(redis_server):
    async with gateway(redis_server) as first, gateway(redis_server) as second:
        held = lease("a", limit=1)
        assert isinstance(await first.take([], held), Taken)
        redis_server.flush()
        await first.renew(held)
        await first.take([Take(HOURLY, 0)])  # by now the renewal has been answered
        assert isinstance(await second.take([], lease("b", limit=1)), Limited)


async def test_frozen_redis_costs_one_short_wait_and_then_nothing(redis_server):
    async with gateway(redis_server, patience=0.02) as store:
        redis_server.freeze()
        try:
            assert await taken([store], BURST) == BURST // 2
            assert store._connection.losses == 1, "only the first request asked Redis"
        finally:
            redis_server.thaw()


async def test_requests_larger_than_a_share_run_and_leave_a_debt(redis_server):
    redis_server.kill()
    async with gateway(redis_server, gateways=4, clock=ContractClock()) as store:
        answer = await store.take([Take(credit(limit=1_000, burst=400), 250)])
        assert isinstance(answer, Taken), "the plan allows it"
        refused = await store.take([Take(credit(limit=1_000, burst=400), 1)])
        assert isinstance(refused, Limited)
        assert refused.retry_us > 150 * 10 * SECOND // 250, "the debt is paid at the share's rate"
        assert isinstance(await store.take([Take(credit(limit=1_000, burst=400), 401)]), Impossible)


async def test_what_a_request_took_too_much_is_given_back_to_the_share_while_redis_is_lost(redis_server):
    redis_server.kill()
    async with gateway(redis_server, clock=ContractClock()) as store:
        half = credit(limit=1_000, burst=400)
        assert isinstance(await store.take([Take(half, 200)], lease("a")), Taken)
        await store.give_back(lease("a"), [Take(half, -150)])
        assert (await store.take([Take(half, 0)])).states[0].remaining == 150


async def test_share_is_at_least_one(redis_server):
    redis_server.kill()
    async with gateway(redis_server, gateways=100) as store:
        assert await taken([store], 3) == 1
        assert len(await places([store], 6, "a")) == 1


async def test_gateway_that_starts_without_redis_uses_it_once_it_is_there(redis_server):
    redis_server.kill()
    async with gateway(redis_server) as store:
        assert await taken([store], BURST) == BURST // 2
        redis_server.start_again()
        await until(lambda: store.is_shared)
        assert await taken([store], BURST) == BURST


async def test_many_leases_are_told_in_batches_and_a_long_outage_piles_nothing_up(redis_server):
    async with gateway(redis_server, gateways=1) as store:
        running = await places([store], 500, "a", count=500)
        redis_server.kill()
        for n in range(2_000):
            one = lease(f"local{n}", limit=1_000)
            assert isinstance(await store.take([], one), Taken)
            await store.give_back(one)
        for _, one in running[:200]:
            await store.give_back(one)
        assert len(store._ended) <= 201, "only what Redis may know of, and the one that noticed"
        redis_server.start_again()
        await until(lambda: store.is_shared)
        assert redis_server.ask("ZCARD", "sluice:t:concurrency") == ":300"
        assert [len(store._ended), len(store._untold)] == [0, 0]
        for _, one in running[200:]:
            await store.give_back(one)
        assert [len(store._running), len(store._known)] == [0, 0]


async def test_many_calls_at_once_are_no_reason_to_give_redis_up(redis_server):
    async with gateway(redis_server) as store:
        running = await places([store], 2_000, "a", count=2_000)
        before = int(redis_server.counted("total_reads_processed"))
        for _, one in running:
            await store.renew(one)
        await store.take([Take(HOURLY, 0)])
        assert int(redis_server.counted("total_reads_processed")) - before >= 2_000 // connection.MOST_TOGETHER
        assert store._connection.losses == 0


@pytest.mark.parametrize(
    "goes_wrong",
    [
        lambda wire: wire.data_received(b"?no such reply\r\n"),
        lambda wire: wire.data_received(b"-LOADING Redis is loading\r\n"),
        lambda wire: wire.data_received(b"*1\r\n:one\r\n"),
        lambda wire: wire.connection_lost(OSError("reset")),
        lambda wire: wire.connection_lost(None),
    ],
)
async def test_whatever_goes_wrong_on_the_wire_nobody_waits(redis_server, goes_wrong):
    async with gateway(redis_server) as store:
        redis_server.freeze()
        asked = asyncio.ensure_future(store.take([Take(HOURLY, 1)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is sent
        assert store._connection._wire.is_waiting
        goes_wrong(store._connection._wire)
        redis_server.thaw()
        assert isinstance(await asked, Taken)
        assert store._connection.losses == 1
        await until(lambda: store.is_shared)


async def test_a_redis_that_refuses_to_write_is_as_good_as_gone(redis_server):
    async with gateway(redis_server) as store:
        redis_server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            assert await taken([store], BURST) == BURST // 2
        finally:
            redis_server.ask("CONFIG", "SET", "maxmemory", "0")
        await until(lambda: store.is_shared)
        assert await taken([store], BURST) == BURST


@pytest.mark.parametrize(
    ("refuses", "allows"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    ],
)
async def test_a_redis_that_refuses_to_write_is_not_taken_for_one_that_counts(redis_server, refuses, allows):
    """It takes connections, scripts and PING, so that it seemed to be back until the next request asked it."""
    redis_server.ask(*refuses)
    try:
        async with gateway(redis_server) as store:
            assert not store.is_shared
            assert redis_server.ask(*allows) == "+OK"
            await until(lambda: store.is_shared)
            assert await taken([store], BURST) == BURST
    finally:
        redis_server.ask(*allows)
