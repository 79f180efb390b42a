"""What the usage record says of a plan's promise, measured by the gateway's own clock, and what it is credited."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from django.db import connection

from base.ids import uuid7
from billing import promises, reconcile
from billing.models import MissedPromise, UsageRecord
from billing.services import promises as credited
from billing.services import rollups
from gateway.generation.generation import start_generation
from gateway.generation.intent import Tier
from inference.types import Kind
from tests.billing.writer.world import put_forward
from tests.gateway.doubles import collect, make_intent
from tests.gateway.world import engine_of, in_database, make_world, opened, principal_of, settled
from tests.waiting import until

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]
SOON = 4_000  # ms: between what passes by itself and what the tests let pass
TTFT = {"promised_ttft_ms": SOON, "promise_credit_bp": 5_000}
RATE = {"promised_rate": 3, "promised_rate_from": 16, "promise_credit_bp": 5_000}
HANGING = 8.0  # seconds that pass while an engine hangs: less than a request may wait in its queue


async def passed(engine, seconds=HANGING):
    """Let so much time pass while the engine hangs, and let it go on."""
    await engine.hanging()
    put_forward(asyncio.get_running_loop(), seconds)
    engine.release()


async def kept_by(runtime, world, *, meanwhile=None, **fields):
    """How one request did, which nothing but `meanwhile` held up."""
    principal = await principal_of(runtime, world)
    starting = asyncio.ensure_future(start_generation(runtime, principal, make_intent(**fields), uuid7()))
    if meanwhile is not None:
        await meanwhile
    generation = await starting
    await collect(generation)
    await settled(runtime)
    return await in_database(record_of, generation.id)


def record_of(request):
    return promises.read(UsageRecord.objects.get(request=request).promise)


def turn():
    """Credit what was missed, as the jobs do; return what each miss was given back."""
    rollups.consume_usage()
    while credited.credits_due().turn():
        pass
    assert reconcile.check(connection) == []
    return list(MissedPromise.objects.values_list("credited", flat=True))


@pytest.mark.parametrize(
    ("hang_at", "terms", "missed"), [(1, TTFT, "ttft"), (2, RATE, "rate"), (2, TTFT, ""), (1, RATE, "")]
)
async def test_an_engine_that_hangs_misses_what_that_touches_and_half_is_given_back(tmp_path, hang_at, terms, missed):
    world = await in_database(make_world, terms=terms, tokens=16, hang_at=hang_at)
    async with opened(tmp_path) as runtime:
        one = await kept_by(runtime, world, meanwhile=passed(engine_of(runtime, world)))
        shown = runtime.metrics.render().decode()
    assert one.missed == ((missed,) if missed else ())
    assert (
        f'sluice_promise_requests_total{{outcome="{f"missed_{missed}" if missed else "kept"}",plan="test"}} 1.0'
        in shown
    )
    assert await in_database(turn) == ([(1000 + 16 * 40) // 2] if missed else [])


async def test_the_time_behind_its_own_requests_is_not_ours(tmp_path):
    world = await in_database(make_world, terms={**TTFT, "concurrency": 1}, tokens=16, hang_at=1)
    async with opened(tmp_path) as runtime:
        engine, principal = engine_of(runtime, world), await principal_of(runtime, world)
        running = asyncio.ensure_future(start_generation(runtime, principal, make_intent(), uuid7()))
        await engine.hanging()
        waiting = asyncio.ensure_future(start_generation(runtime, principal, make_intent(), uuid7()))
        await until(lambda: runtime.requests.gate.waiting)
        put_forward(asyncio.get_running_loop(), HANGING)
        engine.release()
        generations = [await running, await waiting]
        await asyncio.gather(*map(collect, generations))
        await settled(runtime)
    ours, own = [await in_database(record_of, one.id) for one in generations]
    assert (ours.missed, ours.waited_ms) == (("ttft",), 0)
    assert own.missed == ()
    assert own.waited_ms >= HANGING * 1000 > own.ttft_ms


async def test_a_reader_that_reads_nothing_holds_nothing_up(tmp_path):
    world = await in_database(make_world, terms={**TTFT, **RATE}, tokens=16)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        generation = await start_generation(runtime, principal, make_intent(), uuid7())
        await settled(runtime)
        put_forward(asyncio.get_running_loop(), HANGING)
        await collect(generation)
    one = await in_database(record_of, generation.id)
    assert (one.missed, one.ttft_most_ms, one.rate_least) == ((), SOON, 3)
    assert await in_database(turn) == []


async def test_a_long_prompt_has_its_time(tmp_path):
    """100 tokens, of which a quarter comes from the cache: 75 ms more for each second that is allowed for 1,000."""
    world = await in_database(
        make_world, terms={**TTFT, "promised_ttft_per_1k_ms": 200_000}, tokens=16, hang_at=1, cached=0.25
    )
    async with opened(tmp_path) as runtime:
        one = await kept_by(runtime, world, meanwhile=passed(engine_of(runtime, world)))
    assert (one.uncached, one.ttft_most_ms, one.missed) == (75, SOON + 15_000, ())
    assert one.ttft_ms >= HANGING * 1000


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tier": Tier.FLEX}, "flex"),
        ({"kind": Kind.EMBEDDING, "endpoint": "embeddings", "messages": (), "inputs": ("abcd",)}, "kind"),
    ],
)
async def test_what_has_no_promise_says_so(tmp_path, fields, why):
    world = await in_database(make_world, terms={**TTFT, "promised_ttft_ms": 0}, tokens=16)
    async with opened(tmp_path) as runtime:
        assert (await kept_by(runtime, world, **fields)).not_counted == why
    assert await in_database(turn) == []


async def test_lines_of_batches_have_none_and_plans_without_one_leave_nothing(tmp_path):
    world = await in_database(make_world, terms=TTFT, tokens=16)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        line = await start_generation(runtime, principal.for_batch(uuid7(), 4), make_intent(), uuid7())
        plain = await start_generation(runtime, replace(principal, promise=None), make_intent(), uuid7())
        await asyncio.gather(collect(line), collect(plain))
        await settled(runtime)
    assert (await in_database(record_of, line.id)).not_counted == "batch"
    assert await in_database(lambda: UsageRecord.objects.get(request=plain.id).promise) is None


@pytest.mark.parametrize(("seconds", "why", "missed"), [(0, "left", ()), (HANGING, "", ("ttft",))])
async def test_a_client_that_leaves_had_a_late_answer_only_if_it_waited_for_so_long(tmp_path, seconds, why, missed):
    world = await in_database(make_world, terms={**TTFT, **RATE}, tokens=16, hang_at=1)
    async with opened(tmp_path) as runtime:
        engine, principal = engine_of(runtime, world), await principal_of(runtime, world)
        starting = asyncio.ensure_future(start_generation(runtime, principal, make_intent(), uuid7()))
        await engine.hanging()
        [generation] = runtime.requests.live.values()
        put_forward(asyncio.get_running_loop(), seconds)
        starting.cancel()
        await settled(runtime)
    one = await in_database(record_of, generation.id)
    assert (one.not_counted, one.missed) == (why, missed)


async def test_what_fails_and_is_waived_is_no_miss(tmp_path):
    world = await in_database(make_world, terms={**TTFT, "promised_ttft_ms": 0}, tokens=16, error_at=3)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        generation = await start_generation(runtime, principal, make_intent(stream=False), uuid7())
        await collect(generation)
        await settled(runtime)
    assert (await in_database(record_of, generation.id)).not_counted == "failed"
    assert await in_database(turn) == []


async def test_the_time_for_which_credit_is_short_is_not_the_engines(tmp_path):
    world = await in_database(make_world, credit=1000 + 20 * 40, terms={**RATE, "promised_rate": 10**6}, tokens=1000)
    async with opened(tmp_path) as runtime:
        one = await kept_by(runtime, world, max_tokens=1000)
    assert one.not_counted == "short"
