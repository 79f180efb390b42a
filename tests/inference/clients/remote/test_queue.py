"""The places at an endpoint are bounded, and go to the tenant with the least weighted service."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from inference.clients.remote.queue import Places, Ticket
from inference.errors import OverloadedError
from inference.types import Usage
from tests.inference.engine_contract import chat, end_of, run, until


async def order_of(places, tickets):
    """Take places for all tickets at once; each is given back as soon as it is had. Returns tenants in order."""
    order = []

    async def one(ticket):
        await places.take(ticket, 5)
        order.append(ticket.tenant)
        places.served(ticket, Usage(input=100))
        await asyncio.sleep(0)
        places.give_back(ticket)

    await asyncio.gather(*(one(ticket) for ticket in tickets))
    return order


async def waiting(engine, count):
    """Return once so many requests wait."""

    async def is_so():
        return (await engine.health()).waiting == count

    await until(is_so)


async def test_a_flood_does_not_keep_others_waiting():
    places = Places(1, 100)
    order = await order_of(places, [*(Ticket("flood", 1000) for _ in range(40)), Ticket("one", 1000)])
    assert order.index("one") <= 2
    assert (places.running, places.waiting) == (0, 0)


async def test_service_is_shared_by_weight():
    places = Places(1, 200)
    tickets = [ticket for _ in range(60) for ticket in (Ticket("light", 1000), Ticket("heavy", 3000))]
    first = Counter((await order_of(places, tickets))[:60])
    assert 40 <= first["heavy"] <= 48


async def test_output_counts_and_what_was_not_computed_is_taken_back():
    places = Places(1, 10)
    ticket = Ticket("a", 1000)
    await places.take(ticket, 1)
    places.served(ticket, Usage(input=100))
    places.served(ticket, Usage(input=10, cache_read=90, output=5))
    assert places._waiting.queue.counter("a") == (10 * 1000 + 90 * 100 + 5 * 2000) * 1000
    places.give_back(ticket)


async def test_parts_of_a_request_that_runs_are_never_refused():
    """Neither when they come nor while they wait, for a request of whoever has fewer waiting."""
    places = Places(1, 2)
    held = Ticket("a", 1000)
    await places.take(held, 1)
    parts = [asyncio.create_task(places.take(Ticket("a", 1000, is_part=True), 60)) for _ in range(4)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(places.take(Ticket(tenant, 1000), 60)) for tenant in "bcd"]
    await asyncio.sleep(0)
    assert not any(part.done() for part in parts)
    for task in (*parts, *others):
        task.cancel()
    await asyncio.gather(*parts, *others, return_exceptions=True)
    places.give_back(held)
    assert (places.running, places.waiting) == (0, 0)


async def test_the_queue_is_bounded_in_all_and_by_tenant():
    places = Places(1, 4)
    held = Ticket("a", 1000)
    await places.take(held, 1)
    queued = [asyncio.create_task(places.take(Ticket(tenant, 1000), 5)) for tenant in "aabb"]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="of this tenant"):
        await places.take(Ticket("a", 1000), 5)
    for task in queued:
        task.cancel()
    await asyncio.gather(*queued, return_exceptions=True)
    assert (places.running, places.waiting) == (1, 0)
    places.give_back(held)
    assert places.running == 0


async def test_tenants_that_fill_the_queue_make_room_for_another():
    places = Places(1, 4)
    held = Ticket("a", 1000)
    await places.take(held, 1)
    queued = [asyncio.create_task(places.take(Ticket(tenant, 1000), 5)) for tenant in "aabbc"]
    with pytest.raises(OverloadedError, match="fewer requests waiting"):
        await queued[1]
    assert (places.running, places.waiting) == (1, 4)
    with pytest.raises(OverloadedError, match="waiting already"):
        await places.take(Ticket("c", 1000), 5)
    tickets = [ticket for ticket in places._waiting.queue.heads() if ticket.tenant == "c"]
    assert len(tickets) == 1
    for task in (queued[0], *queued[2:]):
        task.cancel()
    await asyncio.gather(*queued, return_exceptions=True)
    places.give_back(held)
    assert (places.running, places.waiting) == (0, 0)


async def test_whoever_gives_up_leaves_no_place_taken():
    places = Places(1, 10)
    first, second, third = (Ticket(tenant, 1000) for tenant in "abc")
    await places.take(first, 1)
    with pytest.raises(OverloadedError, match="in time"):
        await places.take(second, 0.01)
    task = asyncio.create_task(places.take(third, 5))
    await asyncio.sleep(0)
    places.give_back(first)  # the place is third's now
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (places.running, places.waiting) == (0, 0)


async def test_an_endpoint_gets_no_more_than_its_deployments_say(remote):
    engine, upstream = await remote(options={"concurrency": 3}, stall_at=1)
    requests = [chat(f"{number}") for number in range(8)]
    tasks = [asyncio.create_task(run(engine, request)) for request in requests]
    await upstream.until(lambda: len(upstream.running) == 3)
    async with asyncio.timeout(60):
        while (await engine.health()).running < len(requests):  # noqa: ASYNC110 - an engine tells nobody who has come
            await asyncio.sleep(0)
    assert ((await engine.health()).running, (await engine.health()).waiting) == (8, 5)
    upstream.released.set()
    for events in await asyncio.gather(*tasks):
        assert end_of(events).reason == "stop"
    assert upstream.most_running == 3


async def test_deployments_of_one_endpoint_share_its_places_and_the_smallest_bound_holds(remote):
    one, upstream = await remote(options={"concurrency": 5}, stall_at=1)
    two, _ = await remote(at=upstream, options={"concurrency": 2})
    assert one._pool is two._pool
    tasks = [asyncio.create_task(run(engine, chat("x"))) for engine in (one, two, one, two)]
    await upstream.until(lambda: len(upstream.running) == 2)
    upstream.released.set()
    await asyncio.gather(*tasks)
    assert upstream.most_running == 2
    await two.close()
    assert one._pool.places.most == 5


async def test_tenants_take_turns_at_the_server(remote):
    engine, upstream = await remote(options={"concurrency": 1}, stall_at=1)
    held = asyncio.create_task(run(engine, chat("held")))
    await upstream.until(lambda: upstream.running)
    flood = [asyncio.create_task(run(engine, replace(chat("flood"), tenant="flood"))) for _ in range(20)]
    await waiting(engine, 20)
    single = asyncio.create_task(run(engine, replace(chat("single"), tenant="single")))
    await waiting(engine, 21)
    upstream.released.set()
    await asyncio.gather(held, single, *flood)
    assert upstream.order.index("single") <= 3


async def test_a_request_that_waits_can_be_cancelled(remote):
    engine, upstream = await remote(options={"concurrency": 1}, stall_at=1)
    held = asyncio.create_task(run(engine, chat("held")))
    await upstream.until(lambda: upstream.running)
    request = chat("waits")
    second = asyncio.create_task(run(engine, request))
    await waiting(engine, 1)
    await engine.cancel(request.id)
    finished = end_of(await second)
    assert (finished.reason, finished.usage) == ("cancelled", Usage())
    upstream.released.set()
    await held
    assert upstream.order == ["held"]
