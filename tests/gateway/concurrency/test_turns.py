"""Leases that several gateways share: given in the order of coming, within the deadline, and never lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from billing.limits.memory import MemoryRateStore
from billing.limits.redis import store as redis_store
from billing.limits.types import Limited, Take, Taken
from gateway.concurrency import Turns, lease_in_turn
from gateway.errors.refusal import Refusal
from gateway.runtime.hints import Hints
from tests.billing.limits.contract import SECOND, bucket, lease
from tests.billing.limits.test_redis import opened
from tests.waiting import until


def now():
    return asyncio.get_running_loop().time()


class Gateway:
    """A gateway's turns; its requests note in `order` when they get their lease."""

    def __init__(self, store, order, poll_seconds=60.0):
        self.store = store
        self.turns = Turns(poll_seconds)
        self.order = order

    def ask(self, name, *, limit=1, since=None, seconds=60.0, takes=()):
        since = now() if since is None else since

        async def asked():
            until = now() + seconds
            decision = await lease_in_turn(
                self.turns, self.store, list(takes), lease(name, limit), since=since, until=until
            )
            if isinstance(decision, Taken):
                self.order.append(name)
            return decision

        return asyncio.ensure_future(asked())

    async def end(self, name):
        await self.store.give_back(lease(name))
        self.turns.wake(lease(name).key)


async def turn():
    for _ in range(20):
        await asyncio.sleep(0)


async def waits(gateway, count):
    await until(lambda: gateway.turns.waiting == count)


async def test_lease_that_is_free_is_taken_at_once():
    gateway = Gateway(MemoryRateStore(), [])
    assert isinstance(await gateway.ask("a"), Taken)
    assert gateway.turns.waiting == 0


async def test_what_else_is_short_is_refused_at_once():
    gateway = Gateway(MemoryRateStore(), [])
    refused = await gateway.ask("a", takes=[Take(bucket(), 5), Take(bucket(), 1)])
    assert refused.name == "requests"


async def test_leases_go_to_who_came_first_and_to_nobody_twice():
    gateway = Gateway(MemoryRateStore(), [])
    await gateway.ask("runs")
    asked = [gateway.ask(f"{n}") for n in range(4)]
    await turn()
    assert gateway.turns.waiting == 4
    for name in ("runs", "0", "1", "2"):
        await gateway.end(name)
        await turn()
    await asyncio.gather(*asked)
    assert gateway.order == ["runs", "0", "1", "2", "3"]
    assert not gateway.turns._queues


async def test_deadline_is_a_refusal_and_the_next_moves_up():
    gateway = Gateway(MemoryRateStore(), [])
    await gateway.ask("runs")
    late, next_one = gateway.ask("late", seconds=0.01), gateway.ask("next")
    refused = await late
    assert isinstance(refused, Limited)
    await gateway.end("runs")
    assert isinstance(await next_one, Taken)


async def test_who_is_cancelled_leaves_and_the_next_moves_up():
    gateway = Gateway(MemoryRateStore(), [])
    await gateway.ask("runs")
    gone, next_one = gateway.ask("gone"), gateway.ask("next")
    await turn()
    gone.cancel()
    await gateway.end("runs")
    assert isinstance(await next_one, Taken)


async def test_close_refuses_who_waits():
    gateway = Gateway(MemoryRateStore(), [])
    await gateway.ask("runs")
    waiting = gateway.ask("a")
    await turn()
    gateway.turns.close()
    with pytest.raises(Refusal) as caught:
        await waiting
    assert (caught.value.status, caught.value.code) == (503, "server_draining")


async def test_lease_that_ended_by_itself_is_found_by_asking_now_and_then():
    clock = [0]
    store = MemoryRateStore(lambda: clock[0])
    gateway = Gateway(store, [], poll_seconds=0.01)
    await gateway.ask("died")
    waiting = gateway.ask("a")
    await waits(gateway, 1)
    clock[0] += lease("died").ttl_us
    assert isinstance(await waiting, Taken)


@asynccontextmanager
async def two_gateways(server, **options):
    """Two gateways, each woken by the hints that the store's scripts publish."""
    async with opened(server) as one, opened(server) as other:
        order = []
        gateways = Gateway(one, order, **options), Gateway(other, order, **options)
        heard = []
        loops = [
            asyncio.create_task(Hints(server.url, look=lambda: heard.append(1), wake=gateway.turns.wake).listen())
            for gateway in gateways
        ]
        await until(lambda: len(heard) == 2)
        yield gateways
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


@pytest.mark.parametrize("poll_seconds", [0.01, 60.0])
async def test_two_gateways_take_turns_in_the_order_of_coming(redis_server, poll_seconds, monkeypatch):
    """By asking now and then, or by hints alone."""
    monkeypatch.setattr(redis_store, "WAITING_US", 3600 * SECOND)
    async with two_gateways(redis_server, poll_seconds=poll_seconds) as (one, other):
        if poll_seconds < 1:
            one.turns.wake = other.turns.wake = lambda _: None
        await one.ask("runs")
        start, asked = now(), []
        for n in range(8):
            gateway = (one, other)[n % 2]
            asked.append(gateway.ask(f"{n}", since=start - 100 + n))
            await waits(gateway, n // 2 + 1)
        names = ["runs", *(f"{n}" for n in range(8))]
        for place, name in enumerate(names):
            await until(lambda place=place: len(one.order) == place + 1)
            await one.store.give_back(lease(name))  # whoever's gateway it is: the store is one
        await asyncio.gather(*asked)
        assert one.order == names
        await until(lambda: redis_server.ask("DBSIZE") == ":0")  # what is given back is not waited for


@pytest.mark.parametrize("ends", ["cancelled", "late"])
async def test_who_gives_up_waiting_keeps_nobody_in_another_gateway_out(redis_server, ends):
    async with two_gateways(redis_server, poll_seconds=60.0) as (one, other):
        await one.ask("runs")
        gone = one.ask("gone", seconds=60.0 if ends == "cancelled" else 0.0001, since=now() - 5)
        if ends == "cancelled":
            await waits(one, 1)
            gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await one.store.give_back(lease("runs"))
        await one.store.take([Take(bucket(), 0)])  # by now all of it has been answered
        assert isinstance(await other.store.take([], lease("new", 1)), Taken)


class Short:
    """Two queues, of a wallet and of a key's budget in it: each request is short of one of them, or of nothing."""

    KEYS = ("budget", "wallet")

    def __init__(self):
        self.turns, self.waits, self.order, self.short = Turns(60.0), [], [], {}
        self.turns.on_waited = self.waits.append

    def ask(self, name, keys=KEYS, seconds=60.0):
        async def asked(_):
            return name

        def short_of(said):
            return self.short.get(said)

        async def taken():
            since = now()
            await self.turns.take(keys, asked, short_of, since=since, until=since + seconds)
            self.order.append(name)

        return asyncio.ensure_future(taken())


async def test_who_is_short_of_another_thing_leaves_the_queue_and_is_counted_once():
    two = Short()
    two.short = {"first": "budget", "other": "wallet"}
    first = two.ask("first")
    await waits(two, 1)
    await two.ask("free", keys=("wallet",))  # of another key, for which there is enough
    other = two.ask("other", keys=("wallet",))
    await waits(two, 2)
    two.short = {"first": "wallet"}
    two.turns.wake("budget")
    await turn()
    assert two.turns.waiting == 2, "each stands in one queue"
    two.short = {}
    two.turns.wake("wallet")
    await asyncio.gather(first, other)
    assert two.order == ["free", "first", "other"]
    assert len(two.waits) == 2
    assert two.turns.waiting == 0


async def test_requests_of_one_key_keep_their_order_whichever_queue_they_stand_in():
    two = Short()
    two.short = {"big": "wallet", "small": "wallet"}
    big = two.ask("big")
    await waits(two, 1)
    small = two.ask("small")
    await waits(two, 2)
    two.short = {"big": "budget"}  # the small one fits
    two.turns.wake("wallet")
    await turn()
    assert two.order == []
    two.short = {}
    two.turns.wake("budget")
    await asyncio.gather(big, small)
    assert two.order == ["big", "small"]
