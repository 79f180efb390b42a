"""A request that moves to another replica: before its first token anew, after it behind the tokens so far."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from base.ids import uuid7
from billing.rating import charge
from billing.writer.operations import Extend, Release, Settle
from gateway.errors.refusal import Refusal
from gateway.generation.attempts import attempt_id
from gateway.generation.generation import start_generation
from gateway.generation.placement import MOST_ATTEMPTS
from inference.errors import InvalidRequestError
from inference.types import (
    Delta,
    Finished,
    FinishReason,
    Kind,
    Lost,
    PositionLogprobs,
    SamplingParams,
    Started,
    TokenLogprob,
    Usage,
)
from routing.catalogue import RuleEntry
from tests.gateway.doubles import CARD, FAKE, collect, make_intent, make_stand

TOKENS = 40
WHOLE = " ".join(f"w{n}" for n in range(1, TOKENS + 1))


async def start(stand, **fields):
    return await start_generation(stand.runtime, stand.principal, make_intent(**fields), uuid7())


def entries(stand):
    return stand.runtime.engines.entries()


def engines(stand):
    return [entry.engine for entry in entries(stand)]


def set_first(stand, **options):
    """Let the replica that routing takes first (the others are busy) have these options."""
    first, *others = entries(stand)
    first.engine.options = replace(first.engine.options, **options)
    for other in others:
        other.uncached += 100_000
    return first.engine


async def assert_clean(stand, others=1):
    await stand.settled()
    assert not stand.writer.holds
    assert stand.writer.wallet.held == 0
    assert stand.places() == 0
    assert len(stand.runtime.requests.gate) == 0
    assert not any(entry.requests for entry in entries(stand))
    assert sum(entry.uncached for entry in entries(stand)) == 100_000 * others


@pytest.mark.parametrize("token", [2, 3, 16, 17, 39, 40])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_stream_whose_worker_dies_goes_on_elsewhere_and_is_charged_once(token, stream):
    stand = await make_stand(replicas=2, tokens=TOKENS, cached=0.5)
    lost = set_first(stand, lose_at=token)
    generation = await start(stand, stream=stream)
    before, outcome, text = await collect(generation)
    assert text == WHOLE
    assert (outcome.reason, outcome.error) == (FinishReason.STOP, None)
    assert outcome.usage == Usage(input=50, cache_read=50, output=TOKENS)
    assert outcome.charge == charge(outcome.usage.classes(), CARD, 10_000)
    [settle] = stand.writer.settles
    assert settle.charge == outcome.charge == 1_000_000 - stand.writer.wallet.posted
    assert isinstance(lost.record.entries[generation.id.hex], Lost)
    end = engines(stand)[1].record.entries[attempt_id(generation.id, 1)]
    assert isinstance(end, Finished)
    assert end.usage == outcome.usage, "the second worker's record is the whole request's"
    assert sum(type(event).__name__ == "Started" for event in before) == 1
    await assert_clean(stand)


async def test_stop_string_across_the_seam_is_found_and_held_back():
    stand = await make_stand(replicas=2, tokens=TOKENS)
    set_first(stand, lose_at=11)
    sampling = SamplingParams(stop=("w10 w11 w12",))
    _, outcome, text = await collect(await start(stand, sampling=sampling))
    assert text == " ".join(f"w{n}" for n in range(1, 10)) + " "
    assert outcome.usage.output == 12
    await assert_clean(stand)


async def test_several_workers_may_die():
    stand = await make_stand(replicas=3, tokens=TOKENS)
    set_first(stand, lose_at=5)
    second = engines(stand)[1]
    second.options = replace(second.options, lose_at=20)
    entries(stand)[2].uncached += 100_000
    _, outcome, text = await collect(await start(stand))
    assert text == WHOLE
    assert outcome.usage.output == TOKENS
    entries(stand)[2].uncached -= 100_000
    await assert_clean(stand, others=2)


async def test_without_another_replica_it_ends_as_before():
    stand = await make_stand(replicas=1, tokens=TOKENS)
    set_first(stand, lose_at=10)
    _, outcome, text = await collect(await start(stand))
    assert outcome.error is not None
    assert outcome.error.code == "worker_lost"
    assert outcome.usage.output == 9
    assert text == " ".join(f"w{n}" for n in range(1, 10))
    await assert_clean(stand, others=0)


async def test_when_the_other_replica_cannot_prepare_it_ends_with_what_there_was():
    stand = await make_stand(replicas=2, tokens=TOKENS)
    set_first(stand, lose_at=10)
    second = engines(stand)[1]
    second.options = replace(second.options, prepare_error="overloaded")
    _, outcome, _ = await collect(await start(stand))
    assert outcome.error is not None
    assert outcome.error.code == "worker_lost"
    assert outcome.usage.output == 9
    await assert_clean(stand)


async def test_a_row_that_failed_with_tokens_out_does_not_move():
    """It may be the request's own doing: no second worker is risked."""
    stand = await make_stand(replicas=2, tokens=TOKENS)
    set_first(stand, error_at=10)
    _, outcome, _ = await collect(await start(stand))
    assert outcome.error is not None
    assert outcome.error.code == "row_failed"
    assert engines(stand)[1].prepares == 0
    await assert_clean(stand)


async def test_an_embedding_that_lost_its_worker_in_the_middle_does_not_move():
    stand = await make_stand(replicas=2)
    set_first(stand, lose_at=2)
    intent = {"kind": Kind.EMBEDDING, "messages": (), "inputs": ("a", "b"), "stream": False, "prompt": ""}
    _, outcome, _ = await collect(await start(stand, **intent))
    assert outcome.error is not None
    assert outcome.is_waived
    await assert_clean(stand)


@pytest.mark.parametrize(
    "options",
    [
        {"generate_error": "overloaded"},
        {"generate_error": "draining"},
        {"generate_error": "unreachable"},
        {"prepare_error": "overloaded"},
        {"prepare_error": "unreachable"},
        {"lose_at": 1},
        {"error_at": 1},
    ],
)
async def test_before_the_first_token_every_failure_is_tried_elsewhere(options):
    stand = await make_stand(replicas=2, tokens=TOKENS)
    failing = set_first(stand, **options)
    generation = await start(stand)
    _, outcome, text = await collect(generation)
    assert text == WHOLE
    assert outcome.usage == Usage(input=100, output=TOKENS)
    assert outcome.error is None
    assert [type(closing) for closing in (*stand.writer.settles, *stand.writer.releases)] == [Settle]
    assert generation.route.node == "n2"
    assert failing.prepares == 1
    await assert_clean(stand)


def tell_prompt(engine):
    """Let `engine` tell log-probabilities of the prompt in two pieces, before what it would tell without."""
    inner = engine.generate

    async def generate(prepared, allowance, is_final):
        async for event in inner(prepared, allowance, is_final):
            yield event
            if isinstance(event, Started) and prepared.request.resumed is None:
                for token in (7, 8):
                    told = PositionLogprobs(TokenLogprob(token, -1.0), 1, ())
                    yield Delta("", Usage(input=50), prompt_logprobs=(told,))

    engine.generate = generate


@pytest.mark.parametrize("lost_at", [0, 1, 2])
async def test_while_the_prompt_is_read_nothing_was_sent_and_another_worker_begins_anew(lost_at):
    """Log-probabilities of the prompt aren't sent before the answer, so those of the first worker are forgotten."""
    stand = await make_stand(replicas=2, tokens=TOKENS)
    for engine in engines(stand):
        tell_prompt(engine)
    set_first(stand, lose_at=lost_at)
    before, outcome, text = await collect(await start(stand, stream=False))
    assert (text, outcome.error) == (WHOLE, None)
    told = [entry.chosen.token for event in before if isinstance(event, Delta) for entry in event.prompt_logprobs]
    assert told == [7, 8]
    assert outcome.usage.output == TOKENS
    await assert_clean(stand)


async def test_an_answer_without_tokens_tells_the_prompts_log_probabilities_too():
    stand = await make_stand(replicas=1, tokens=0)
    tell_prompt(engines(stand)[0])
    before, outcome, text = await collect(await start(stand, stream=False))
    assert (text, outcome.error) == ("", None)
    assert sum(len(event.prompt_logprobs) for event in before if isinstance(event, Delta)) == 2


async def test_the_clients_own_fault_is_tried_once():
    stand = await make_stand(replicas=2)
    set_first(stand, prepare_error="invalid")
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert caught.value.status == 400
    assert engines(stand)[1].prepares == 0
    await assert_clean(stand)


@pytest.mark.parametrize("refusing", [1, 2])
async def test_an_adapter_that_one_worker_cannot_serve_is_asked_of_another(refusing):
    """Their deployments may differ in dtype and in how large an adapter may be."""

    async def refuse(request):
        raise InvalidRequestError("the adapter can't be served: it is too large", code="adapter_refused")

    stand = await make_stand(replicas=2, tokens=TOKENS)
    set_first(stand)
    for engine in engines(stand)[:refusing]:
        engine.prepare = refuse
    if refusing == 1:
        generation = await start(stand)
        assert (await collect(generation))[2] == WHOLE
        assert generation.route.node == "n2"
    else:
        with pytest.raises(Refusal) as caught:
            await start(stand)
        assert (caught.value.status, caught.value.code) == (400, "adapter_refused")
        assert caught.value.message == "The model 'fake': the adapter can't be served: it is too large"
    await assert_clean(stand)


async def test_refused_by_all_is_refused_with_nothing_held():
    stand = await make_stand(replicas=2)
    for engine in engines(stand):
        engine.options = replace(engine.options, generate_error="overloaded")
    set_first(stand)
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (503, "engine_overloaded")
    [release] = stand.writer.of(Release)
    assert not release.facts.waived
    await assert_clean(stand)


async def test_a_request_has_so_many_attempts_and_no_more():
    """The sweep asks about so many: what a further one ran nobody would know."""
    stand = await make_stand(replicas=MOST_ATTEMPTS + 2, tokens=TOKENS)
    for engine in engines(stand):
        engine.options = replace(engine.options, lose_at=1)
    set_first(stand)
    generation = await start(stand)
    _, outcome, _ = await collect(generation)
    assert outcome.reason is FinishReason.ERROR
    assert sum(len(engine.record.entries) for engine in engines(stand)) == MOST_ATTEMPTS
    await assert_clean(stand, others=MOST_ATTEMPTS + 1)


async def test_a_client_that_leaves_while_its_request_moves_is_charged_for_what_it_got():
    stand = await make_stand(replicas=2, tokens=TOKENS)
    set_first(stand, lose_at=10)
    second, preparing, go = engines(stand)[1], asyncio.Event(), asyncio.Event()
    prepare = second.prepare

    async def slow(request):
        preparing.set()
        await go.wait()
        return await prepare(request)

    second.prepare = slow
    generation = await start(stand)
    reading = asyncio.ensure_future(collect(generation))
    await preparing.wait()
    generation.client_left()
    go.set()
    _, outcome, _ = await reading
    assert (outcome.reason, outcome.usage.output) == (FinishReason.CANCELLED, 9)
    assert attempt_id(generation.id, 1) not in second.record.entries, "nothing ran there"
    await assert_clean(stand)


async def test_a_worker_that_stops_the_request_for_its_drain_passes_it_on():
    stand = await make_stand(replicas=2, tokens=TOKENS, hang_at=10)
    first = set_first(stand)
    second = engines(stand)[1]
    second.options = replace(second.options, hang_at=0)
    generation = await start(stand)
    reading = asyncio.ensure_future(collect(generation))
    await first.hanging()
    await first.close()
    _, outcome, text = await reading
    assert text == WHOLE
    assert outcome.error is None
    await assert_clean(stand)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("token", [1, 2])
async def test_what_was_cached_at_the_first_replica_buys_no_output_at_the_second(token, stream):
    """The credit pays for the prompt at its full price and 25 tokens, or where 99 % of it were cached for 916. Behind
    its first token a request keeps the price of its prompt.
    """
    stand = await make_stand(replicas=2, tokens=2000, credit=41_000)
    set_first(stand, cached=0.99, lose_at=token)
    _, outcome, _ = await collect(await start(stand, stream=stream, prompt="x" * 4 * 3996, max_tokens=1500))
    assert outcome.sluice_reason == "credit_exhausted"
    expected = Usage(input=4000, output=25) if token == 1 else Usage(input=40, cache_read=3960, output=916)
    assert outcome.usage == expected
    assert stand.writer.wallet.posted == 41_000 - outcome.charge >= 0
    await assert_clean(stand)


@pytest.mark.parametrize(("credit", "output"), [(1_000_000, TOKENS), (1000 + 16 * 40, 16)])
async def test_a_worker_that_dies_while_the_request_waits_for_credit(credit, output):
    """16 tokens are paid for, and the answer of the extension comes only after the move: an engine takes no request
    at its allowance.
    """
    stand = await make_stand(replicas=2, tokens=TOKENS, credit=credit)
    first, answer = set_first(stand), asyncio.Event()

    async def before(operation):
        if isinstance(operation, Extend):
            await answer.wait()

    stand.writer.before = before
    generation = await start(stand)
    reading = asyncio.ensure_future(collect(generation))
    second = engines(stand)[1]
    async with asyncio.timeout(120):
        while generation.checkpoint().get("output", 0) < 16:  # noqa: ASYNC110 - it has to be let run
            await asyncio.sleep(0)
        await first.close()
        while not second.prepares:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    answer.set()
    _, outcome, text = await reading
    assert text == " ".join(f"w{n}" for n in range(1, output + 1))
    assert outcome.usage.output == output
    assert outcome.error is None
    assert outcome.sluice_reason == (None if output == TOKENS else "credit_exhausted")
    await assert_clean(stand)


def test_attempts_have_ids_of_their_own_and_the_age_of_their_request():
    request = uuid7()
    ids = [attempt_id(request, number) for number in range(3)]
    assert ids[0] == request.hex
    assert len({*ids, *(attempt_id(uuid7(), number) for number in range(3))}) == 6
    for made in map(UUID, ids):
        assert (made.version, made.bytes[:6]) == (7, request.bytes[:6])


async def test_a_stream_goes_on_with_the_model_that_began_it():
    """A model and its adapters share deployments and replicas, and a rule may draw any of them."""
    rules = (RuleEntry("r", "", "", None, None, (("fake", 1), ("sibling", 1)), ()),)
    for _ in range(12):  # drawn anew, one in two would be another
        stand = await make_stand(models=(FAKE, replace(FAKE, name="sibling")), rules=rules, replicas=2, tokens=TOKENS)
        deployments = (await stand.runtime.catalogue.current()).catalogue.deployments
        deployments["sibling"] = tuple(replace(one, model="sibling") for one in deployments["fake"])
        for entry in entries(stand)[1:]:
            entry.uncached += 100_000
        entries(stand)[0].engine.options = replace(entries(stand)[0].engine.options, lose_at=10)
        generation = await start(stand, model="auto")
        began = generation.route.model
        _, outcome, text = await collect(generation)
        assert (text, outcome.error) == (WHOLE, None)
        assert (generation.route.model, generation.route.node) == (began, "n2")
        [reserve] = stand.writer.reserves
        assert reserve.model == began


async def test_a_fallback_model_serves_what_the_targets_do_not_take():
    """The target is ready by its health and refuses all the same: at its own model's price the fallback serves."""
    target, spare = replace(FAKE, name="target", rate_card="target-card"), replace(FAKE, name="spare")
    rules = (RuleEntry("r", "", "", None, None, (("target", 1),), (("spare", 1),)),)
    stand = await make_stand(models=(target, spare), rules=rules, tokens=3)
    stand.engine_of("target").options = replace(stand.engine_of("target").options, prepare_error="overloaded")
    generation = await start(stand, model="auto")
    _, outcome, text = await collect(generation)
    assert (generation.route.model, text) == ("spare", "w1 w2 w3")
    [reserve] = stand.writer.reserves
    assert reserve.model == "spare"
    assert "fallback" in reserve.facts.route["reason"]
    assert {c["model"]: c["rejected"] for c in reserve.facts.route["candidates"]} == {
        "target": "the fake engine refuses to prepare: overloaded",
        "spare": "",
    }
    assert outcome.error is None
    await assert_clean(stand, others=0)
