"""Generations through the real writer: what the database says afterwards."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from django.conf import settings
from django.db.models import F

from base.ids import uuid7
from billing.models import Hold, Wallet
from billing.rating import charge
from billing.services import cards
from billing.writer.operations import Settle
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import Refusal
from gateway.generation import settlement
from gateway.generation.generation import start_generation
from gateway.generation.leases import Leases
from gateway.generation.sweep import Sweep
from inference.types import FinishReason, Kind
from tenancy.models import APIKey
from tests.gateway.doubles import CARD, collect, make_intent
from tests.gateway.world import assert_books, engine_of, in_database, make_world, opened, principal_of, settled

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


async def test_charge_in_the_books_is_the_engines_record_recomputed(tmp_path):
    world = await in_database(make_world, tokens=40, cached=0.25)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        generation = await start_generation(runtime, principal, make_intent(end_user="bob"), uuid7())
        _, outcome, _ = await collect(generation)
        usage = engine_of(runtime, world).record.usage()
    charged, [row] = await in_database(assert_books, world, records=1)
    assert charged == outcome.charge == charge(usage.classes(), CARD, 10_000)
    assert (row.input_tokens, row.cache_read_tokens, row.output_tokens) == (75, 25, 40)
    assert (row.endpoint, row.finish, row.task, row.exact) == ("chat.completions", "stop", "chat", True)
    assert row.route["deployment"] == "fake"
    assert len(row.end_user) == 64
    assert row.ttft_ms is not None
    assert row.api_key == world.key_id


async def test_mixed_load_with_clients_that_leave_adds_up(tmp_path):
    world = await in_database(make_world, tokens=60, cached=0.3, tokens_per_delta=2)
    draw = random.Random(7)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        gate = asyncio.Semaphore(12)

        async def one(number):
            async with gate:
                if number % 5 == 0:
                    intent = make_intent(kind=Kind.EMBEDDING, endpoint="embeddings", messages=(), inputs=("abcd" * 9,))
                else:
                    intent = make_intent(max_tokens=draw.choice([None, 1, 5, 50]))
                generation = await start_generation(runtime, principal, intent, uuid7())
                leave_after = draw.choice([None, 0, 1, 3, 9])
                seen = 0
                if leave_after == 0:
                    generation.client_left()
                async for _ in generation.events():
                    seen += 1
                    if seen == leave_after:
                        generation.client_left()

        await asyncio.gather(*(one(number) for number in range(60)))
        await settled(runtime)
        usage = engine_of(runtime, world).record.usage()
    _, rows = await in_database(assert_books, world, records=60)
    assert sum(row.input_tokens for row in rows) == usage.input
    assert sum(row.cache_read_tokens for row in rows) == usage.cache_read
    assert sum(row.output_tokens for row in rows) == usage.output
    for row in rows:
        classes = {"input": row.input_tokens, "cache_read": row.cache_read_tokens, "output": row.output_tokens}
        assert row.charge == charge(classes, CARD, 10_000)


async def test_credit_for_100_tokens_ends_at_the_right_token_and_not_below_zero(tmp_path):
    world = await in_database(make_world, credit=1000 + 100 * 40, tokens=1000)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        _, outcome, _ = await collect(await start_generation(runtime, principal, make_intent(max_tokens=1000), uuid7()))
        assert outcome.usage.output == 100
        assert (outcome.reason, outcome.sluice_reason) == (FinishReason.LENGTH, "credit_exhausted")
        with pytest.raises(Refusal) as caught:
            await start_generation(runtime, principal, make_intent(), uuid7())
        assert caught.value.status == 402
    await in_database(assert_books, world, records=1)
    assert (await in_database(Wallet.objects.get, pk=world.wallet.pk)).posted == 0


@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_longer_than_its_first_hold_is_whole_where_reasoning_is_dearer_than_output(tmp_path, is_stream):
    """Each token leaves more of the hold than was reckoned with, of which the engine must hear."""
    world = await in_database(make_world, tokens=300, terms={"slice_tokens": 256})
    rates = {0: {"input": 10_000_000, "output": 1_000_000, "reasoning": 10_000_000}}
    await in_database(cards.publish, "fake-card", rates)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        intent = make_intent(max_tokens=300, stream=is_stream)
        _, outcome, _ = await collect(await start_generation(runtime, principal, intent, uuid7()))
        assert (outcome.error, outcome.usage.output) == (None, 300)
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == outcome.charge == 1000 + 300


async def test_a_key_with_a_small_rate_of_credit_takes_no_more_at_once(tmp_path):
    world = await in_database(make_world, tokens=30, terms={"slice_tokens": 256})
    await in_database(APIKey.objects.unscoped().filter(pk=world.key_id).update, credit_limit=2000)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        assert principal.most_at_once == 2000
        _, outcome, _ = await collect(await start_generation(runtime, principal, make_intent(max_tokens=30), uuid7()))
        assert (outcome.error, outcome.usage.output) == (None, 30)


async def test_requests_wait_for_credit_that_others_only_hold(tmp_path):
    """Each holds far more than it is charged, and together they are charged what there is."""
    world = await in_database(make_world, credit=16 * 1480, tokens=12, terms={"slice_tokens": 256})
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)

        async def one():
            return (await collect(await start_generation(runtime, principal, make_intent(max_tokens=250), uuid7())))[1]

        outcomes = await asyncio.gather(*(one() for _ in range(16)))
    assert {(outcome.reason, outcome.charge) for outcome in outcomes} == {(FinishReason.STOP, 1480)}
    charged, _ = await in_database(assert_books, world, records=16)
    assert charged == 16 * 1480


async def test_what_is_held_too_long_is_asked_for_again_and_what_is_not_there_is_not(tmp_path, monkeypatch):
    world = await in_database(make_world, credit=1000 + 16 * 40 + 1000, tokens=40, hang_at=10)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        monkeypatch.setattr(runtime.requests.gate, "waits_until", lambda since: since)
        first = await start_generation(runtime, principal, make_intent(), uuid7())
        with pytest.raises(Refusal) as caught:
            await start_generation(runtime, principal, make_intent(), uuid7())
        assert (caught.value.status, caught.value.code) == (429, "credit_held")
        assert caught.value.headers["retry-after"] == "1"
        engine_of(runtime, world).release()
        await collect(first)
        with pytest.raises(Refusal) as caught:
            await start_generation(runtime, principal, make_intent(), uuid7())
        assert (caught.value.status, caught.value.code) == (402, "credit_balance_exhausted")
    await in_database(assert_books, world, records=1)


async def test_a_foreign_answer_is_not_cut_by_what_others_hold(tmp_path, monkeypatch):
    world = await in_database(make_world, credit=1000 + 100 * 40 + 2000, tokens=20)
    async with opened(tmp_path) as runtime:
        engine = engine_of(runtime, world)
        monkeypatch.setattr(type(engine), "info", replace(engine.info, can_extend=False))
        principal = await principal_of(runtime, world)

        async def one():
            return (await collect(await start_generation(runtime, principal, make_intent(max_tokens=100), uuid7())))[1]

        outcomes = await asyncio.gather(*(one() for _ in range(3)))
    assert {(outcome.reason, outcome.charge) for outcome in outcomes} == {(FinishReason.STOP, 1800)}
    await in_database(assert_books, world, records=3)


async def test_many_at_once_share_scarce_credit_without_going_below_zero(tmp_path):
    world = await in_database(make_world, credit=20_000, tokens=200)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)

        async def one():
            try:
                return (await collect(await start_generation(runtime, principal, make_intent(), uuid7())))[1]
            except Refusal as refusal:
                return refusal

        answers = await asyncio.gather(*(one() for _ in range(16)))
    outcomes = [answer for answer in answers if isinstance(answer, Outcome)]
    assert any(outcome.sluice_reason for outcome in outcomes)
    assert {answer.status for answer in answers if isinstance(answer, Refusal)} <= {402}
    await in_database(assert_books, world, records=len(outcomes))


async def test_pending_settlement_is_swept_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 0.01)
    world = await in_database(make_world, tokens=30)
    async with opened(tmp_path) as runtime:
        submit = lose_settles(runtime, monkeypatch)
        principal = await principal_of(runtime, world)
        _, outcome, _ = await collect(await start_generation(runtime, principal, make_intent(), uuid7()))
        assert (outcome.charge, outcome.error) == (None, None)
        assert not runtime.requests.live
        sweep = Sweep(
            engines_of=runtime.engines.of, submit=submit, threads=runtime.threads, unsettled=runtime.requests.closings
        )
        assert dict(await sweep.turn()) == {"settled": 1}
        assert not await sweep.turn()
    charged, [row] = await in_database(assert_books, world, records=1)
    assert charged == 1000 + 30 * 40
    assert row.exact


async def test_delivered_answer_is_waived_by_no_sweep_beside_its_gateway(tmp_path, monkeypatch):
    """Only its gateway knows that an answer in one piece was delivered while its settlement was pending."""
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 0.01)
    world = await in_database(make_world, tokens=30)
    async with opened(tmp_path) as runtime:
        submit = lose_settles(runtime, monkeypatch)
        principal = await principal_of(runtime, world)
        await collect(await start_generation(runtime, principal, make_intent(stream=False), uuid7()))
        await in_database(end_leases)
        await Leases(runtime.requests, runtime.writer).renew()
        of, threads = runtime.engines.of, runtime.threads
        beside = Sweep(engines_of=of, submit=submit, threads=threads)
        assert not await beside.turn()
        own = Sweep(engines_of=of, submit=submit, threads=threads, unsettled=runtime.requests.closings)
        assert dict(await own.turn()) == {"settled": 1}
        assert not runtime.requests.closings
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.waived) == (1000 + 30 * 40, False)


def lose_settles(runtime, monkeypatch):
    """Let no settle of `runtime` be applied from now on; return the way past that."""
    submit = runtime.writer.submit

    async def lossy(operation, seconds=None):
        if isinstance(operation, Settle):
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        return await submit(operation, seconds)

    monkeypatch.setattr(runtime.writer, "submit", lossy)
    return submit


def end_leases():
    """Make every hold's lease a thing of the past."""
    Hold.objects.update(lease_until=F("reserved_at"))


@pytest.mark.contract  # a gateway that starts on SQLite ends the leases by itself
async def test_reopened_home_closes_what_the_earlier_gateway_left(tmp_path, monkeypatch):
    """Only an embedded home's lock proves that the earlier owner is gone; PostgreSQL waits for the lease."""
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 0.01)
    world = await in_database(make_world, tokens=30)
    async with opened(tmp_path) as runtime:
        lose_settles(runtime, monkeypatch)
        principal = await principal_of(runtime, world)
        await collect(await start_generation(runtime, principal, make_intent(), uuid7()))
        record = engine_of(runtime, world).record
    async with opened(tmp_path) as runtime:
        engine_of(runtime, world).record.entries.update(record.entries)
        if not settings.SLUICE_EMBEDDED:
            await in_database(end_leases)
        sweep = Sweep(engines_of=runtime.engines.of, submit=runtime.writer.submit, threads=runtime.threads)
        assert dict(await sweep.turn()) == {"settled": 1}
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == charge(record.usage().classes(), CARD, 10_000)
