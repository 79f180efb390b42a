"""A generation from admission to settlement, against the fake engine and the writer's decisions in memory."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from base.ids import uuid7
from billing.limits.types import Bucket, Lease, Taken
from billing.rating import CardPrices, charge
from billing.writer.entry import WriterBusyError, WriterError
from billing.writer.operations import Bearing, BudgetTerms, Extend, Release, Reserve, Settle
from billing.writer.view import Count
from gateway.concurrency import ConcurrencyLimiter
from gateway.errors import faults
from gateway.errors.refusal import Refusal
from gateway.generation import admission, credit, settlement
from gateway.generation import generation as generation_module
from gateway.generation.generation import start_generation
from inference.messages import Message
from inference.types import Delta, Finished, FinishReason, Kind, SamplingParams, Started, Usage, Vector
from tests.gateway.doubles import CARD, FAKE, collect, make_intent, make_stand
from tests.waiting import until


async def start(stand, intent=None, **fields):
    return await start_generation(stand.runtime, stand.principal, intent or make_intent(**fields), uuid7())


def assert_clean(stand):
    """Nothing is held, no place is taken, and nobody is inside."""
    assert not stand.writer.holds
    assert stand.writer.wallet.held == 0
    assert stand.places() == 0
    assert len(stand.runtime.requests.gate) == 0
    assert not stand.runtime.requests.live


def bucket_used(stand):
    """Return the units taken from (requests, credits); the clock stands still."""
    used = []
    for bucket in (stand.principal.request_bucket, stand.principal.credit_bucket):
        tat = stand.runtime.rates._tats.get(bucket.key, 1_000_000)
        used.append(round((tat - 1_000_000) * bucket.limit / bucket.period_us))
    return tuple(used)


async def test_charge_equals_the_recomputed_usage():
    stand = await make_stand(tokens=20)
    generation = await start(stand)
    assert generation.prompt_tokens == 100
    before, outcome, text = await collect(generation)
    assert isinstance(before[0], Started)
    assert text == " ".join(f"w{n}" for n in range(1, 21))
    assert outcome.reason is FinishReason.STOP
    assert outcome.usage == Usage(input=100, output=20)
    assert outcome.charge == 100 * 10 + 20 * 40 == charge(outcome.usage.classes(), CARD, 10_000)
    assert outcome.available == stand.writer.wallet.posted == 1_000_000 - outcome.charge
    assert_clean(stand)
    assert bucket_used(stand) == (1, outcome.charge)
    [settle] = stand.writer.settles
    [reserve] = stand.writer.reserves
    assert settle.facts.finish == "stop"
    assert (reserve.facts.endpoint, reserve.facts.task) == ("chat.completions", generation.route.task)
    assert reserve.facts.route["deployment"] == "fake-1"
    assert stand.record.usage() == outcome.usage


async def test_settle_is_answered_and_rates_are_given_back_before_the_outcome():
    stand = await make_stand(tokens=3)
    generation = await start(stand)
    async for event in generation.events():
        last = event
        if not isinstance(event, (Started, Delta)):
            assert stand.writer.settles
            assert_clean(stand)
    assert last.charge == 1120


async def test_cached_tokens_are_charged_at_their_own_rate():
    stand = await make_stand(tokens=2, cached=0.5)
    _, outcome, _ = await collect(await start(stand))
    assert outcome.usage == Usage(input=50, cache_read=50, output=2)
    assert outcome.charge == 50 * 10 + 50 * 1 + 2 * 40


async def test_first_hold_is_the_prompt_at_the_dearest_class_and_one_slice():
    stand = await make_stand(tokens=2)
    await collect(await start(stand))
    [reserve] = stand.writer.reserves
    assert (reserve.amount, reserve.least) == (100 * 10 + 16 * 40, 100 * 10 + 40)
    assert reserve.card_version == CARD.id


async def test_small_max_tokens_holds_no_more_than_it_can_use():
    stand = await make_stand(tokens=100)
    _, outcome, _ = await collect(await start(stand, max_tokens=3))
    assert stand.writer.reserves[0].amount == 1000 + 3 * 40
    assert outcome.reason is FinishReason.LENGTH
    assert outcome.sluice_reason is None
    assert not stand.writer.of(Extend)


@pytest.mark.parametrize(("asked", "output"), [({}, 3), ({"max_tokens": 5}, 5), ({"min_tokens": 4}, 4)])
async def test_a_models_default_bounds_an_answer_whose_request_does_not(asked, output):
    stand = await make_stand(tokens=100, models=(replace(FAKE, default_max_tokens=3),))
    _, outcome, _ = await collect(await start(stand, sampling=SamplingParams(**asked)))
    assert (outcome.usage.output, outcome.reason) == (output, FinishReason.LENGTH)
    assert stand.writer.reserves[0].amount == 1000 + output * 40


async def test_hold_grows_in_doubling_slices_ahead_of_the_stream():
    stand = await make_stand(tokens=200)
    _, outcome, _ = await collect(await start(stand))
    assert outcome.usage.output == 200
    targets = [(extend.amount - 1000) // 40 for extend in stand.writer.of(Extend)]
    assert targets == [16 + 32, 48 + 64, 112 + 128, 240 + 256]
    assert stand.engine.extensions[0][1] == 48
    assert_clean(stand)


async def test_allowance_rises_to_the_actual_classes_once_the_prompt_is_known():
    stand = await make_stand(tokens=10, cached=0.9)
    await collect(await start(stand))
    # 1,640 µcr are held; the prompt turned out to cost 100 + 90, which leaves room for 36 tokens
    assert stand.engine.extensions[0][1] == (1640 - 190) // 40


async def test_credit_for_100_tokens_ends_a_request_for_1000_at_the_right_token():
    stand = await make_stand(tokens=1000, credit=1000 + 100 * 40 + 39)
    _, outcome, text = await collect(await start(stand, max_tokens=1000))
    assert outcome.usage.output == 100
    assert text.split()[-1] == "w100"
    assert (outcome.reason, outcome.sluice_reason) == (FinishReason.LENGTH, "credit_exhausted")
    assert outcome.error is None
    assert stand.writer.wallet.posted == 39
    assert_clean(stand)


async def test_two_streams_on_one_wallet_run_until_the_credit_is_really_used():
    """One short extension used to count as the last for ever, so that the longer stream was cut with credit left."""
    stand = await make_stand(tokens=3000, credit=2 * 1000 + 1500 * 40)
    outcomes = [outcome for _, outcome, _ in await asyncio.gather(*[collect(await start(stand)) for _ in range(2)])]
    assert [outcome.sluice_reason for outcome in outcomes] == ["credit_exhausted"] * 2
    assert stand.writer.wallet.posted == 0
    assert sum(outcome.usage.output for outcome in outcomes) == 1500
    assert_clean(stand)


async def test_credit_that_another_stream_gives_back_is_used():
    """The second stream's extension is short (40 tokens of 48), then the first ends and leaves it more."""
    stand = await make_stand(tokens=3000, credit=2 * 1000 + 88 * 40, hang_at=20)
    first, second = await start(stand), await start(stand)
    while any(one.checkpoint().get("output") != 19 for one in (first, second)):  # noqa: ASYNC110 - they have to be let run
        await asyncio.sleep(0)
    assert stand.writer.wallet.available == 0
    first.client_left()
    await collect(first)
    stand.engine.release()
    _, outcome, _ = await collect(second)
    assert (outcome.sluice_reason, outcome.usage.output) == ("credit_exhausted", 88 - 19)
    assert stand.writer.wallet.posted == 0
    assert_clean(stand)


async def test_credit_for_other_models_neither_pays_nor_counts():
    stand = await make_stand(tokens=20)
    stand.writer.wallet.kept_pools = '{"other":[999000,0]}'
    with pytest.raises(Refusal, match=r"needs at least 0\.00104 credits and 0\.001 are available") as refused:
        await start(stand)
    assert (refused.value.status, refused.value.code) == (402, "credit_balance_exhausted")
    stand.writer.wallet.counted_pools["other"].rest = 900_000
    _, outcome, _ = await collect(await start(stand))
    assert outcome.available == 100_000 - outcome.charge
    assert_clean(stand)


async def test_credit_for_one_token_is_enough_to_begin():
    stand = await make_stand(credit=1040, tokens=50)
    _, outcome, _ = await collect(await start(stand))
    assert outcome.usage.output == 1
    assert outcome.sluice_reason == "credit_exhausted"
    assert stand.writer.wallet.posted == 0


async def test_no_credit_for_one_token_is_402_and_gives_everything_back():
    stand = await make_stand(credit=1039)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    await stand.settled()
    assert (caught.value.status, caught.value.code) == (402, "credit_balance_exhausted")
    assert caught.value.headers["x-should-retry"] == "false"
    assert_clean(stand)
    assert bucket_used(stand) == (0, 0)
    assert not stand.record.entries


async def test_free_model_needs_no_credit():
    free = CardPrices.build(uuid7(), 0, [(0, "input", 0), (0, "output", 0)])
    stand = await make_stand(credit=0, card=free, tokens=40)
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.usage.output, outcome.charge) == (40, 0)
    assert_clean(stand)


@pytest.mark.parametrize("token", [1, 2, 7, 16, 17, 40])
async def test_client_that_leaves_is_charged_for_exactly_what_ran(monkeypatch, token):
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand = await make_stand(tokens=60, hang_at=token)
    generation = await start(stand)
    reading = asyncio.ensure_future(collect(generation))
    await stand.engine.hanging()
    generation.client_left()
    _, outcome, _ = await reading
    assert outcome.reason is FinishReason.CANCELLED
    evidence = await stand.engine.usage_of(generation.id.hex)
    assert isinstance(evidence, Finished)
    assert outcome.usage == evidence.usage == Usage(input=100, output=token - 1)
    assert outcome.charge == charge(evidence.usage.classes(), CARD, 10_000)
    assert stand.writer.wallet.posted == 1_000_000 - outcome.charge
    assert_clean(stand)


async def test_reader_that_vanishes_without_a_word_changes_nothing():
    stand = await make_stand(tokens=5)
    generation = await start(stand)
    await stand.settled()
    assert stand.writer.charges == {generation.id: 1200}
    assert_clean(stand)


async def test_client_that_leaves_before_the_engine_began_is_charged_nothing(monkeypatch):
    stand = await make_stand()
    release = asyncio.Event()
    generate = stand.engine.generate

    async def late(prepared, allowance, last):
        await release.wait()
        async for event in generate(prepared, allowance, last):
            yield event

    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0.001)
    monkeypatch.setattr(stand.engine, "generate", late)
    generation = await start(stand)
    generation.client_left()
    stand.engine._prepared.clear()  # a worker that got the cancel first knows the request no more
    release.set()
    _, outcome, _ = await collect(generation)
    assert outcome.charge == 0
    assert outcome.usage == Usage()
    assert_clean(stand)


async def test_cancelled_admission_leaves_nothing_behind():
    stand = await make_stand()
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def wait(operation):
        if isinstance(operation, Reserve):
            arrived.set()
            await go_on.wait()

    stand.writer.before = wait
    starting = asyncio.ensure_future(start(stand))
    await arrived.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await stand.settled()
    assert_clean(stand)
    assert bucket_used(stand) == (0, 0)


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        ("overloaded", 503, "engine_overloaded"),
        ("draining", 503, "engine_draining"),
        ("invalid", 400, "invalid_request"),
        ("unprepared", 503, "engine_unavailable"),
    ],
)
async def test_engine_that_refuses_to_generate_is_a_refusal_and_nothing_is_charged(refusal, status, code):
    stand = await make_stand(generate_error=refusal)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert [type(operation) for operation in stand.writer.operations] == [Reserve, Release]
    assert_clean(stand)
    assert bucket_used(stand) == (0, 0)
    assert stand.writer.wallet.posted == 1_000_000


async def test_engine_that_nobody_reaches_is_told_to_stop_and_nothing_is_charged():
    stand = await make_stand(generate_error="unreachable")
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (503, "engine_unavailable")
    [release] = stand.writer.releases
    assert release.facts.waived  # it may have begun all the same
    assert len(stand.engine.cancellations) == 1
    assert_clean(stand)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [("overloaded", 503), ("draining", 503), ("unreachable", 503), ("invalid", 400), ("limited", 429)],
)
async def test_engine_that_refuses_to_prepare_is_a_refusal_and_gives_the_request_back(refusal, status):
    stand = await make_stand(prepare_error=refusal)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert caught.value.status == status
    if refusal == "limited":
        assert (caught.value.code, caught.value.headers["retry-after"]) == ("preparation_limit_exceeded", "1")
    assert not stand.writer.operations
    await stand.settled()
    assert_clean(stand)
    assert bucket_used(stand) == (0, 0)


async def test_prompt_longer_than_the_context_names_the_field():
    stand = await make_stand(max_context=50)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "messages")


async def test_forgotten_prompt_is_prepared_once_more():
    stand = await make_stand(tokens=4)
    prepare = stand.engine.prepare

    async def forgetful(request):
        prepared = await prepare(request)
        if stand.engine.prepares == 1:
            stand.engine._prepared.clear()
        return prepared

    stand.engine.prepare = forgetful
    _, outcome, _ = await collect(await start(stand))
    assert stand.engine.prepares == 2
    assert outcome.usage.output == 4
    assert_clean(stand)


async def test_an_id_that_is_closed_is_not_tried_again_and_costs_nothing(monkeypatch):
    stand = await make_stand()
    prepare = stand.engine.prepare

    async def closed(request):
        prepared = await prepare(request)
        await stand.engine.usage_of(request.id)  # somebody asked: it is declared as never run
        return prepared

    monkeypatch.setattr(stand.engine, "prepare", closed)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert caught.value.status == 503
    assert stand.engine.prepares == 1
    assert [release.facts.waived for release in stand.writer.releases] == [True]
    assert_clean(stand)


async def test_failing_row_is_charged_for_what_it_gave():
    stand = await make_stand(tokens=20, error_at=6)
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.reason, outcome.error.code) == (FinishReason.ERROR, "row_failed")
    assert outcome.usage.output == 5
    assert outcome.charge == 1200
    assert_clean(stand)


async def test_row_that_fails_before_any_output_costs_nothing():
    stand = await make_stand(tokens=20, error_at=1)
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.error.code, outcome.charge, outcome.is_waived) == ("row_failed", 0, True)
    assert len(stand.writer.releases) == 1
    assert_clean(stand)


FAILURES = {
    "row_failed": {"error_at": 8},
    "worker_lost": {"lose_at": 8},
    "ledger_unavailable": {"pause_seconds": 0.02},
    "server_draining": {"hang_at": 8},
    "lease_lost": {"hang_at": 8},
}


async def broken(code, **fields):
    """Return a stand and the outcome of a request that we break after some output."""
    stand = await make_stand(tokens=40, **FAILURES[code])
    go_on = asyncio.Event()

    async def hang(operation):
        if isinstance(operation, Extend):
            await go_on.wait()

    if code == "ledger_unavailable":
        stand.writer.before = hang
    generation = await start(stand, **fields)
    reading = asyncio.ensure_future(collect(generation))
    if code in {"server_draining", "lease_lost"}:
        await stand.engine.hanging()
        generation.cancel(faults.DRAINING if code == "server_draining" else faults.LEASE_LOST)
    _, outcome, _ = await reading
    go_on.set()
    await stand.settled()
    assert outcome.error.code == code
    assert_clean(stand)
    return stand, outcome


@pytest.mark.parametrize("code", FAILURES)
async def test_answer_in_one_piece_that_we_break_is_waived(monkeypatch, code):
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand, outcome = await broken(code, stream=False)
    assert (outcome.charge, outcome.is_waived, outcome.usage) == (0, True, Usage())
    [release] = stand.writer.releases
    assert (release.facts.waived, release.facts.finish) == (True, code)
    assert not stand.writer.settles
    assert stand.writer.wallet.posted == 1_000_000
    assert bucket_used(stand) == (1, 0)


@pytest.mark.parametrize("code", FAILURES)
async def test_stream_that_we_cut_pays_for_what_was_delivered(code):
    stand, outcome = await broken(code)
    output = 16 if code == "ledger_unavailable" else 7
    assert outcome.usage == Usage(input=100, output=output)
    assert (outcome.charge, outcome.is_waived) == (1000 + output * 40, False)
    [settle] = stand.writer.settles
    assert settle.exact


async def test_stream_pays_for_no_more_than_went_out_when_a_lost_worker_did_more():
    stand = await make_stand(tokens=20, lose_at=8)

    async def usage_of(request_id):
        return Finished(FinishReason.CANCELLED, Usage(input=100, output=12))

    stand.engine.usage_of = usage_of
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.error.code, outcome.charge) == ("worker_lost", 1000 + 7 * 40)


@pytest.mark.parametrize("streamed", [True, False])
async def test_client_that_leaves_pays_for_what_ran(monkeypatch, streamed):
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand = await make_stand(tokens=40, hang_at=8)
    generation = await start(stand, stream=streamed)
    await stand.engine.hanging()
    generation.client_left()
    _, outcome, _ = await collect(generation)
    assert (outcome.reason, outcome.error, outcome.charge) == (FinishReason.CANCELLED, None, 1000 + 7 * 40)


async def test_engine_that_stops_on_its_own_account_failed_and_no_client_left(monkeypatch):
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand = await make_stand(tokens=40, hang_at=8)
    generation = await start(stand, stream=False)
    await stand.engine.hanging()
    await stand.engine.drain(0)
    _, outcome, _ = await collect(generation)
    assert (outcome.reason, outcome.error.code, outcome.error.retryable) == (FinishReason.ERROR, "engine_stopped", True)
    assert (outcome.charge, outcome.is_waived) == (0, True)


def hang_at_settle(stand):
    async def hang(operation):
        if isinstance(operation, Settle | Release):
            await asyncio.Event().wait()

    stand.writer.before = hang


@pytest.mark.parametrize("streamed", [True, False])
async def test_answer_is_delivered_while_its_settlement_is_pending(monkeypatch, streamed):
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 0.01)
    stand = await make_stand(tokens=3)
    hang_at_settle(stand)
    generation = await start(stand, stream=streamed)
    _, outcome, text = await collect(generation)
    assert text == "w1 w2 w3"
    assert (outcome.reason, outcome.error, outcome.charge) == (FinishReason.STOP, None, None)
    assert outcome.usage == Usage(input=100, output=3)
    assert not stand.runtime.requests.live
    assert stand.places() == 0
    assert generation.id in stand.writer.holds
    assert stand.runtime.requests.closings[generation.id].charge == 1120


async def test_cut_stream_keeps_its_error_while_its_settlement_is_pending(monkeypatch):
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 0.01)
    stand = await make_stand(tokens=20, lose_at=8)
    hang_at_settle(stand)
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.reason, outcome.error.code, outcome.charge) == (FinishReason.ERROR, "worker_lost", None)


async def test_settle_that_fails_is_tried_again():
    stand = await make_stand(tokens=3)
    failures = iter([WriterError("away"), WriterBusyError("behind")])

    async def fail(operation):
        if isinstance(operation, Settle):
            for error in failures:
                raise error

    stand.writer.before = fail
    _, outcome, _ = await collect(await start(stand))
    assert outcome.charge == 1120
    assert_clean(stand)


async def test_busy_writer_is_503_and_gives_everything_back():
    stand = await make_stand()

    async def fail(operation):
        raise WriterBusyError("behind")

    stand.writer.before = fail
    with pytest.raises(Refusal) as caught:
        await start(stand)
    await stand.settled()
    assert (caught.value.status, caught.value.code) == (503, "ledger_unavailable")
    assert caught.value.headers["retry-after"] == "1"
    assert_clean(stand)
    assert bucket_used(stand) == (0, 0)


async def test_extension_that_is_not_answered_ends_the_answer_with_an_error():
    stand = await make_stand(tokens=100, pause_seconds=0.02)
    go_on = asyncio.Event()

    async def hang(operation):
        if isinstance(operation, Extend):
            await go_on.wait()

    stand.writer.before = hang
    _, outcome, _ = await collect(await start(stand))
    go_on.set()
    assert outcome.usage.output == 16
    assert (outcome.reason, outcome.error.code) == (FinishReason.ERROR, "ledger_unavailable")
    assert outcome.charge == 1000 + 16 * 40


@pytest.mark.parametrize(("slow_seconds", "is_early"), [(30.0, False), (-1.0, True)])
async def test_extension_is_asked_for_early_when_the_reserve_took_long(monkeypatch, slow_seconds, is_early):
    monkeypatch.setattr(admission, "SLOW_SECONDS", slow_seconds)
    stand = await make_stand(tokens=100, hang_at=4)  # a slice has 16
    generation = await start(stand)
    engine = stand.engine
    await engine.hanging()
    assert bool(stand.writer.of(Extend)) == is_early
    engine.release()
    _, outcome, _ = await collect(generation)
    assert (outcome.usage.output, outcome.error) == (100, None)


async def test_extension_is_tried_again_until_it_is_answered(monkeypatch):
    monkeypatch.setattr(credit, "RETRY_SECONDS", 0)
    stand = await make_stand(tokens=30)
    failures = iter([WriterError("away"), WriterError("away")])

    async def fail(operation):
        if isinstance(operation, Extend):
            for error in failures:
                raise error

    stand.writer.before = fail
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.usage.output, outcome.error) == (30, None)


async def test_request_beyond_its_rate_is_429_with_the_time_to_wait_and_is_not_prepared():
    one = Bucket("one", "requests", 1, 60_000_000, 1)
    stand = await make_stand(terms={"request_bucket": one}, tokens=1)
    await collect(await start(stand))
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert caught.value.headers["retry-after"] == "60"
    assert caught.value.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(stand.writer.reserves) == 1
    assert stand.engine.prepares == 1
    assert_clean(stand)


async def test_request_above_the_credit_burst_is_400():
    small = Bucket("small", "credits", 1039, 60_000_000, 1039)
    stand = await make_stand(terms={"credit_bucket": small})
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (400, "request_exceeds_burst")
    assert_clean(stand)


async def test_slice_shrinks_to_what_the_credit_burst_lets_pass():
    small = Bucket("small", "credits", 1200, 60_000_000, 1200)
    stand = await make_stand(terms={"credit_bucket": small}, tokens=12)
    _, outcome, _ = await collect(await start(stand))
    assert stand.writer.reserves[0].amount == 1200
    assert outcome.usage.output == 12


async def test_tenant_at_its_concurrency_is_refused_before_anything_is_tokenised():
    stand = await make_stand(terms={"concurrency": 1}, tokens=5, hang_at=2)
    stand.runtime.requests.gate = ConcurrencyLimiter(length=0)
    first = await start(stand)
    await stand.engine.hanging()
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (429, "concurrency_limit_exceeded")
    assert caught.value.headers["retry-after"] == "1"
    assert stand.engine.prepares == 1
    stand.engine.release()
    await collect(first)
    await collect(await start(stand))
    assert_clean(stand)


async def test_parallel_requests_wait_for_their_tenants_places_and_are_all_answered():
    """200 at once under the Business plan's terms."""
    rate = Bucket("many", "requests", 600, 60_000_000, 1_200)
    stand = await make_stand(terms={"concurrency": 64, "request_bucket": rate}, tokens=5)
    stand.runtime.rates = CountingRates(stand.runtime.rates)

    async def one():
        _, outcome, _ = await collect(await start(stand))
        return outcome

    outcomes = await asyncio.gather(*(one() for _ in range(200)))
    assert {outcome.reason for outcome in outcomes} == {FinishReason.STOP}
    assert stand.runtime.rates.most == 64
    assert_clean(stand)


class CountingRates:
    """A rate store that notes how many places were taken at most."""

    def __init__(self, store):
        self._store = store
        self.most = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def take(self, takes, lease=None, waiting=None):
        decision = await self._store.take(takes, lease, waiting)
        assert isinstance(decision, Taken), "a place of the queue comes with its lease"
        self.most = max(self.most, sum(len(holders) for holders in self._store._leases.values()))
        return decision


async def test_request_that_is_given_up_while_it_waits_has_touched_nothing():
    stand = await make_stand(terms={"concurrency": 1}, tokens=5, hang_at=2)
    first = await start(stand)
    waiting = asyncio.ensure_future(start(stand))
    while not stand.runtime.requests.gate.waiting:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (stand.runtime.requests.gate.waiting, stand.engine.prepares, len(stand.writer.reserves)) == (0, 1, 1)
    stand.engine.release()
    await collect(first)
    assert_clean(stand)


async def test_drain_refuses_what_still_waits_when_its_patience_is_over():
    stand = await make_stand(terms={"concurrency": 1}, tokens=5, hang_at=2)
    first = await start(stand)
    waiting = asyncio.ensure_future(start(stand))
    while not stand.runtime.requests.gate.waiting:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    assert await stand.runtime.requests.drain(patience=0.01, last_patience=5)
    with pytest.raises(Refusal) as caught:
        await waiting
    assert (caught.value.status, caught.value.code) == (503, "server_draining")
    await collect(first)
    assert_clean(stand)


async def test_place_taken_in_another_process_is_429_and_gives_the_buckets_back():
    stand = await make_stand(terms={"concurrency": 1})
    stand.runtime.requests.gate = ConcurrencyLimiter(seconds=0.05)
    tenant = stand.principal.tenant
    await stand.runtime.rates.take([], Lease(f"{{{tenant}}}:concurrency", 1, "elsewhere", 30_000_000))
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert caught.value.code == "concurrency_limit_exceeded"
    await stand.settled()
    assert bucket_used(stand) == (0, 0)


async def test_embeddings_are_charged_for_their_input_alone():
    stand = await make_stand()
    intent = make_intent(kind=Kind.EMBEDDING, endpoint="embeddings", messages=(), inputs=("a" * 40, (1, 2, 3)))
    before, outcome, _ = await collect(await start(stand, intent))
    assert [event.index for event in before if isinstance(event, Vector)] == [0, 1]
    assert outcome.usage == Usage(input=13)
    assert outcome.charge == 130
    assert stand.writer.reserves[0].amount == 130
    assert not stand.writer.of(Extend)
    assert_clean(stand)


@pytest.mark.parametrize(
    ("model", "terms", "status", "code"),
    [
        ("nothing", {}, 404, "model_not_found"),
        ("fake", {"allowed_models": frozenset({"other"})}, 403, "model_not_allowed"),
    ],
)
async def test_routing_errors_are_refusals_that_touch_nothing(model, terms, status, code):
    stand = await make_stand(terms=terms)
    with pytest.raises(Refusal) as caught:
        await start(stand, model=model)
    assert (caught.value.status, caught.value.code, caught.value.param) == (status, code, "model")
    if status == 403:
        assert "the plans Business and Free" in caught.value.message
    assert_clean(stand)


async def test_deployment_that_is_not_ready_is_503():
    stand = await make_stand(ready=False)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (503, "no_ready_deployment")


async def test_reader_that_lets_text_lie_ends_its_generation():
    stand = await make_stand(text=" ".join(["x" * 200_000] * 12))
    generation = await start(stand)
    await stand.settled()
    _, outcome, _ = await collect(generation)
    assert outcome.error.code == "reader_too_slow"
    assert outcome.usage.output < 12
    assert outcome.charge == charge(outcome.usage.classes(), CARD, 10_000)


async def test_slow_reader_gets_joined_deltas_with_the_same_text():
    stand = await make_stand(tokens=50)
    generation = await start(stand)
    await stand.settled()
    before, _, text = await collect(generation)
    assert len([event for event in before if isinstance(event, Delta)]) < 5
    assert text == " ".join(f"w{n}" for n in range(1, 51))
    assert before[-1].usage.output == 50


async def test_drain_refuses_new_requests_and_ends_the_running_ones():
    stand = await make_stand(tokens=50, hang_at=3)
    generation = await start(stand)
    await stand.engine.hanging()
    reading = asyncio.ensure_future(collect(generation))
    assert await stand.runtime.requests.drain(patience=0.01, last_patience=5)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (503, "server_draining")
    _, outcome, _ = await reading
    assert (outcome.reason, outcome.error.code) == (FinishReason.ERROR, "server_draining")
    assert outcome.charge == 1000 + 2 * 40
    assert_clean(stand)


@pytest.mark.parametrize(("streamed", "charge"), [(True, 1000 + 3 * 40), (False, 0)])
async def test_engine_that_says_nothing_after_cancel_failed(monkeypatch, streamed, charge):
    monkeypatch.setattr(generation_module, "CANCEL_SECONDS", 0.01)
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand = await make_stand(tokens=9, hang_at=4)
    generation = await start(stand, stream=streamed)
    await stand.engine.hanging()

    async def deaf(request_id):
        return None

    monkeypatch.setattr(stand.engine, "cancel", deaf)
    generation.client_left()
    _, outcome, _ = await collect(generation)
    assert (outcome.error.code, outcome.charge) == ("engine_stopped", charge)
    assert_clean(stand)


async def test_engine_that_breaks_its_contract_leaves_the_hold_to_the_sweep(monkeypatch):
    stand = await make_stand()

    async def broken(prepared, allowance, last):
        yield Started(0)

    monkeypatch.setattr(stand.engine, "generate", broken)
    _, outcome, _ = await collect(await start(stand))
    assert (outcome.charge, outcome.error.code) == (None, "internal_error")
    assert len(stand.writer.holds) == 1
    assert stand.places() == 0


async def test_the_plans_weight_and_priority_reach_the_engine(monkeypatch, settings):
    settings.SLUICE_ENGINE_QUEUE_SECONDS = 7.5
    stand = await make_stand(terms={"weight": 3000, "priority": 2}, tokens=1)
    prepare, seen = stand.engine.prepare, []

    async def watched(request):
        seen.append((request.weight, request.band, request.priority, request.queue_seconds))
        return await prepare(request)

    monkeypatch.setattr(stand.engine, "prepare", watched)
    await collect(await start(stand))
    assert seen == [(3000, 2, 0, 7.5)]


async def test_of_a_tenants_requests_the_lowest_priority_comes_first(monkeypatch):
    stand = await make_stand(tokens=1)
    prepare, seen = stand.engine.prepare, []

    async def watched(request):
        seen.append(request.priority)
        return await prepare(request)

    monkeypatch.setattr(stand.engine, "prepare", watched)
    await collect(await start(stand, priority=5))
    assert seen == [-5]


OURS = ("billing.", "gateway.", "inference.", "routing.")


async def test_an_ended_request_leaves_nothing_to_the_collector():
    stand = await make_stand()
    await collect(await start(stand))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            await collect(await start(stand))
        await asyncio.gather(*stand.runtime.requests.supervised)
        stand.runtime.requests.generations.clear()
        stand.runtime.requests.supervised.clear()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [found for found in gc.garbage if type(found).__module__.startswith(OURS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


async def test_a_reader_has_the_end_before_it_is_logged_and_counted(monkeypatch):
    order = []
    monkeypatch.setattr(generation_module, "report", lambda *_: order.append("reported"))
    stand = await make_stand(tokens=5)
    generation = await start_generation(stand.runtime, stand.principal, make_intent(), uuid7())
    await collect(generation)
    order.append("read")
    await stand.settled()
    assert order == ["read", "reported"]


async def test_a_prompt_is_measured_once(monkeypatch):
    """Admission asks for its size three times: of a long conversation each was as much work as the rest of routing."""
    measured = []
    real = Message.characters.fget
    monkeypatch.setattr(Message, "characters", property(lambda message: measured.append(message) or real(message)))
    stand = await make_stand(tokens=5)
    intent = make_intent()
    await collect(await start_generation(stand.runtime, stand.principal, intent, uuid7()))
    await stand.settled()
    assert measured == list(intent.messages)


async def test_who_waits_for_a_keys_budget_keeps_no_other_keys_waiting():
    """They waited in one queue: a key that had lent out all that it may spend held up the whole tenant."""
    stand = await make_stand(tokens=20, hang_at=1, terms={"concurrency": 8})
    stand.writer.wallet.windows["1.0"] = Count(0, 0, 2_500)
    small = replace(stand.principal, budgets=Bearing((BudgetTerms(1, "total", 0, "UTC"),)))

    def begin(principal):
        return asyncio.create_task(start_generation(stand.runtime, principal, make_intent(max_tokens=20), uuid7()))

    first = begin(small)
    await stand.generation()
    second = begin(small)
    await until(lambda: stand.runtime.requests.turns.waiting)
    third = begin(stand.principal)
    assert (await stand.generation(1)).principal is stand.principal
    assert not second.done()
    stand.runtime.requests.generations[0].client_left()
    assert (await stand.generation(2)).principal is small, "what the first gave back the second has"
    for generation in stand.runtime.requests.generations:
        generation.client_left()
    await asyncio.gather(first, second, third)
    await stand.settled()
    assert_clean(stand)
