"""The rate store in Redis: the contract of all stores, on a real server, and what only several gateways can do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from billing.limits.redis.connection import RedisConnection
from billing.limits.redis.store import ADJUST, SCRIPTS, RedisRateStore
from billing.limits.redis.wire import Call
from billing.limits.types import WAITING_US, Limited, Take, Taken, Waiting
from tests.billing.limits.contract import SECOND, RateStoreContract, bucket, credit, lease
from tests.billing.limits.contract import Clock as ContractClock


@asynccontextmanager
async def opened(server, clock=None, patience=5.0):
    """A store of its own connection, patient enough for a busy machine."""
    connection = RedisConnection(server.url, SCRIPTS, patience)
    await connection.open()
    store = RedisRateStore(connection, clock)
    try:
        yield store
    finally:
        await store.close()


class TestRedisRateStore(RateStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server):
        self.server = redis_server

    @asynccontextmanager
    async def open_store(self, clock):
        self.server.flush()
        async with opened(self.server, clock) as store:
            yield store


async def test_burst_is_exact_whichever_gateway_it_is_asked_through(redis_server):
    one = bucket(limit=10, period_us=3600 * SECOND, burst=10)
    async with opened(redis_server) as first, opened(redis_server) as second:
        stores = [first, second] * 20
        answers = await asyncio.gather(*(store.take([Take(one, 1)]) for store in stores))
    assert sum(isinstance(answer, Taken) for answer in answers) == 10


async def test_leases_are_exact_whichever_gateway_they_are_asked_through(redis_server):
    async with opened(redis_server) as first, opened(redis_server) as second:
        stores = [first, second] * 10
        asked = (store.take([], lease(f"{number}", limit=7)) for number, store in enumerate(stores))
        answers = await asyncio.gather(*asked)
        assert sum(isinstance(answer, Taken) for answer in answers) == 7


async def test_redis_own_clock_counts(redis_server):
    async with opened(redis_server) as store:
        one = bucket(limit=1, period_us=SECOND, burst=1)
        assert isinstance(await store.take([Take(one, 1)]), Taken)
        refused = await store.take([Take(one, 1)])
        assert refused.name == "requests"
        assert 0 < refused.retry_us <= SECOND


async def test_all_keys_expire(redis_server):
    async with opened(redis_server) as store:
        await store.take([Take(bucket(), 3), Take(credit(), 10)], lease("a", limit=1))
        await store.take([], lease("b", limit=1), Waiting(0, 1))
        await store.adjust(bucket(key="u:requests"), 5)
        await store.renew(lease("a", limit=1))
        await store.take([Take(bucket(key="full:requests"), 0)])
        keys = ["t:requests", "t:credits", "t:concurrency", "t:concurrency:waiting", "u:requests"]
        assert redis_server.ask("DBSIZE") == f":{len(keys)}"
        for key in keys:
            assert 0 < int(redis_server.ask("PTTL", f"sluice:{key}")[1:]) < 120_000, key


async def test_who_waits_longest_comes_first_whichever_gateway_it_waits_in(redis_server):
    async with opened(redis_server) as first, opened(redis_server) as second:
        await first.take([], lease("runs", limit=1))
        early, late, new = lease("early", limit=1), lease("late", limit=1), lease("new", limit=1)
        assert isinstance(await second.take([], late, Waiting(1 * SECOND, 1)), Limited)
        assert isinstance(await first.take([], early, Waiting(2 * SECOND, 1)), Limited)
        await first.give_back(lease("runs", limit=1))
        assert (await second.take([], new)).name == "concurrency", "a newcomer passes nobody who waits"
        assert isinstance(await second.take([], late, Waiting(1 * SECOND, 1)), Limited)
        assert isinstance(await first.take([], early, Waiting(2 * SECOND, 1)), Taken)
        await first.give_back(early)
        assert isinstance(await second.take([], late, Waiting(1 * SECOND, 1)), Taken)


async def test_a_gateway_speaks_for_all_who_wait_in_it(redis_server):
    async with opened(redis_server) as first, opened(redis_server) as second:
        for name in ("a", "b"):
            await first.take([], lease(name))
        head = lease("head")
        assert isinstance(await first.take([], head, Waiting(SECOND, 2)), Limited)
        await first.give_back(lease("a"))
        await first.give_back(lease("b"))
        assert isinstance(await second.take([], lease("new")), Limited), "two wait, and two places are free"
        assert isinstance(await first.take([], head, Waiting(SECOND, 2)), Taken)


async def test_who_waits_in_a_gateway_that_died_keeps_nobody_out_for_long(redis_server):
    clock = ContractClock()
    async with opened(redis_server, clock) as store:
        await store.take([], lease("runs", limit=1))
        await store.take([], lease("dead", limit=1), Waiting(5 * SECOND, 3))
        await store.give_back(lease("runs", limit=1))
        assert isinstance(await store.take([], lease("new", limit=1)), Limited)
        clock.advance(WAITING_US)
        assert isinstance(await store.take([], lease("new", limit=1)), Taken)


async def test_who_stops_waiting_keeps_nobody_out(redis_server):
    async with opened(redis_server) as store:
        await store.take([], lease("runs", limit=1))
        await store.take([], lease("left", limit=1), Waiting(5 * SECOND, 1))
        await store.give_back(lease("left", limit=1))
        await store.give_back(lease("runs", limit=1))
        assert isinstance(await store.take([], lease("new", limit=1)), Taken)


async def test_who_is_cancelled_while_redis_decides_has_taken_nothing(redis_server):
    one = bucket(limit=1, period_us=3600 * SECOND, burst=1)
    async with opened(redis_server) as store:
        asked = asyncio.ensure_future(store.take([Take(one, 1)], lease("a", limit=1)))
        await asyncio.sleep(0)  # it is on its way
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await store._connection.send(Call(ADJUST, ["sluice:other"], ["", 0, 0]))  # by now the other is answered too
        assert isinstance(await store.take([Take(one, 1)], lease("b", limit=1)), Taken)


async def test_who_is_cancelled_in_the_turn_in_which_redis_answers_has_taken_nothing(redis_server, monkeypatch):
    one = bucket(limit=1, period_us=3600 * SECOND, burst=1)
    async with opened(redis_server) as store:
        asked = asyncio.ensure_future(store.take([Take(one, 1)], lease("a", limit=1)))
        await asyncio.sleep(0)
        wire = store._connection._wire
        received = wire.data_received
        with monkeypatch.context() as patched:
            patched.setattr(wire, "data_received", lambda data: received(data) or asked.cancel())
            assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], asyncio.CancelledError)
        assert isinstance(await store.take([Take(one, 1)], lease("b", limit=1)), Taken)


async def test_scripts_that_redis_forgot_are_sent_again_in_order(redis_server):
    async with opened(redis_server) as store:
        await store.take([Take(bucket(), 1)])
        redis_server.flush()
        await store.adjust(bucket(), 5)
        assert isinstance(await store.take([Take(bucket(), 1)]), Limited)


async def test_calls_that_come_together_travel_together(redis_server):
    async with opened(redis_server) as store:
        before = int(redis_server.counted("total_reads_processed"))
        await asyncio.gather(*(store.take([Take(bucket(key=f"{n}:requests"), 1)]) for n in range(100)))
        assert int(redis_server.counted("total_reads_processed")) - before <= 4
