"""A request that moves to another deployment before its first token: its hold is pinned to the price of what serves."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from base.ids import uuid7
from billing.rating import CardPrices
from billing.writer.entry import WriterError
from billing.writer.operations import Extend, Refused, Release, Repin, Reserve, Settle
from gateway.apis.chat.endpoint import ChatFormat
from gateway.apis.chat.wire import ChatRequest
from gateway.apis.responses.endpoint import ResponseFormat
from gateway.apis.responses.events import ResponseEvents
from gateway.apis.responses.wire import ResponseRequest
from gateway.errors.refusal import Refusal
from gateway.generation import credit
from gateway.generation import generation as generation_module
from gateway.generation.attempts import attempt_id
from gateway.generation.generation import start_generation
from gateway.wire.decode import decode
from inference.types import Delta, Finished, Usage
from routing.catalogue import Catalogue, RuleEntry
from tests.gateway.doubles import CARD, FAKE, collect, make_deployment, make_intent, make_stand

DEAR = CardPrices.build(
    uuid7(), 0, [(0, "input", 30_000_000), (0, "cache_read", 3_000_000), (0, "output", 120_000_000)]
)
"""Three times as much as CARD."""
TARGET, SPARE = (
    replace(FAKE, name="target", rate_card="target-card"),
    replace(FAKE, name="spare", rate_card="spare-card"),
)
RULE = RuleEntry("r", "", "", None, None, (("target", 1),), (("spare", 1),))
TOKENS = 40
WHOLE = " ".join(f"w{n}" for n in range(1, TOKENS + 1))


async def make_two(*, models=(TARGET, SPARE), spare_card=DEAR, target=None, **fields):
    """A stand with a target that fails as `target` says, and a spare model at another price."""
    stand = await make_stand(models=models, rules=(RULE,), tokens=TOKENS, **fields)
    prices = {**stand.runtime.catalogue.snapshot.prices, "spare-card": spare_card}
    stand.runtime.catalogue.snapshot = replace(stand.runtime.catalogue.snapshot, prices=prices)
    first = stand.engine_of("target")
    first.options = replace(first.options, **(target or {"generate_error": "overloaded"}))
    return stand


async def start(stand, **fields):
    return await start_generation(stand.runtime, stand.principal, make_intent(**({"model": "auto"} | fields)), uuid7())


async def assert_clean(stand):
    await stand.settled()
    assert not stand.writer.holds
    assert stand.writer.wallet.held == 0
    assert stand.places() == 0
    assert len(stand.runtime.requests.gate) == 0
    assert not any(entry.requests or entry.uncached for entry in stand.runtime.engines.entries())


async def test_a_tenant_that_has_used_up_its_preparation_gets_no_other_engines():
    stand = await make_two(target={"prepare_error": "limited"})
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert (caught.value.status, caught.value.code) == (429, "preparation_limit_exceeded")
    assert stand.engine_of("spare").prepares == 0
    assert not any(entry.obstacle for entry in stand.runtime.engines.entries())
    await assert_clean(stand)


FAILURES = [
    {"generate_error": "overloaded"},
    {"generate_error": "draining"},
    {"generate_error": "unreachable"},
    {"lose_at": 1},
    {"error_at": 1},
]


@pytest.mark.parametrize("target", FAILURES, ids=str)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("spare_card", [DEAR, replace(CARD, id=uuid7())], ids=["dear", "same"])
async def test_fallback_serves_a_request_whose_target_fails_and_is_charged_at_its_own_price(target, stream, spare_card):
    stand = await make_two(target=target, spare_card=spare_card)
    generation = await start(stand, stream=stream)
    _, outcome, text = await collect(generation)
    assert (text, outcome.error) == (WHOLE, None)
    assert generation.route.model == "spare"
    [reserve], [repin], [settle] = (stand.writer.of(kind) for kind in (Reserve, Repin, Settle))
    assert (reserve.model, reserve.card_version) == ("target", CARD.id)
    assert (repin.model, repin.card_version) == ("spare", spare_card.id)
    assert repin.deployment == generation.route.deployment != reserve.deployment
    each = 3 if spare_card is DEAR else 1
    assert outcome.charge == settle.charge == each * (100 * 10 + TOKENS * 40) == 1_000_000 - stand.writer.wallet.posted
    end = stand.engine_of("spare").record.entries[attempt_id(generation.id, 1)]
    assert isinstance(end, Finished)
    attempts = settle.facts.route["attempts"]
    assert [(one["model"], bool(one["failed"])) for one in attempts] == [("target", True), ("spare", False)]
    assert "fallback" in settle.facts.route["reason"]
    assert repin.facts == msgspec.structs.replace(reserve.facts, route=settle.facts.route)
    assert stand.runtime.metrics.registry.get_sample_value("sluice_credits_micro_total", {"model": "spare"}) == (
        outcome.charge
    )
    await assert_clean(stand)


async def test_no_token_is_generated_without_credit_at_the_new_price():
    """The hold that paid for 16 tokens of the target pays for none of the spare: it is raised before that begins."""
    stand = await make_two(credit=3 * (100 * 10 + 8 * 40))
    generation = await start(stand)
    _, outcome, text = await collect(generation)
    assert text == " ".join(f"w{n}" for n in range(1, 9))
    assert (outcome.sluice_reason, outcome.charge) == ("credit_exhausted", 3 * (100 * 10 + 8 * 40))
    assert stand.writer.wallet.posted == 0
    await assert_clean(stand)


@pytest.mark.parametrize("stream", [True, False])
async def test_credit_too_short_for_the_fallback_ends_with_what_the_target_failed_with(stream):
    stand = await make_two(credit=100 * 10 + 8 * 40)
    with pytest.raises(Refusal) as caught:
        await start(stand, stream=stream)
    assert (caught.value.status, caught.value.code) == (503, "engine_overloaded")
    [release] = stand.writer.of(Release)
    [_, lacking] = release.facts.route["attempts"]
    assert lacking["model"] == "spare"
    assert "needs at least 0.00312 credits and 0.00132 are available" in lacking["failed"]
    assert stand.engine_of("spare").record.entries == {}
    assert stand.writer.wallet.posted == 100 * 10 + 8 * 40
    await assert_clean(stand)


async def test_after_the_first_token_no_other_deployment_serves():
    stand = await make_two(target={"lose_at": 5})
    _, outcome, text = await collect(await start(stand))
    assert outcome.error is not None
    assert outcome.error.code == "worker_lost"
    assert text == "w1 w2 w3 w4"
    assert (stand.writer.of(Repin), stand.engine_of("spare").prepares) == ([], 0)
    await assert_clean(stand)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stream_whose_reader_knows_the_model_stays_with_it(stream, monkeypatch):
    """Its head went out before the first token, since that took long."""
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand = await make_two(target={"hang_at": 1})
    generation = await start(stand, stream=stream)
    reading = asyncio.ensure_future(collect(generation))
    await stand.engine_of("target").hanging()
    await stand.engine_of("target").close()
    _, outcome, text = await reading
    if stream:
        assert (outcome.charge, outcome.is_waived, text) == (0, True, "")
        assert generation.route.model == "target"
        assert stand.writer.of(Repin) == []
    else:
        assert (generation.route.model, text) == ("spare", WHOLE)
    await assert_clean(stand)


async def test_another_deployment_of_the_same_model_serves_before_a_fallback_does():
    stand = await make_stand(models=(TARGET, SPARE), rules=(RULE,), tokens=TOKENS)
    catalogue = stand.runtime.catalogue.snapshot.catalogue
    [first] = catalogue.deployments["target"]
    second = make_deployment(TARGET, "target-2", tokens=TOKENS)
    deployments = {**catalogue.deployments, "target": (first, second)}
    catalogue = Catalogue(catalogue.models, deployments, catalogue.rules)
    stand.runtime.engines.follow(catalogue.all_deployments())
    await stand.runtime.engines.look()
    stand.runtime.catalogue.snapshot = replace(stand.runtime.catalogue.snapshot, catalogue=catalogue)
    engines = {entry.deployment.name: entry.engine for entry in stand.runtime.engines.entries()}
    busy = next(entry for entry in stand.runtime.engines.entries() if entry.deployment.name == "target-2")
    busy.uncached += 100_000
    engines["target-1"].options = replace(engines["target-1"].options, generate_error="unreachable")
    generation = await start(stand)
    _, outcome, text = await collect(generation)
    assert (text, outcome.error) == (WHOLE, None)
    assert (generation.route.model, generation.route.deployment_name) == ("target", "target-2")
    [repin] = stand.writer.of(Repin)
    assert (repin.deployment, repin.card_version) == (second.id, CARD.id)
    busy.uncached -= 100_000
    await assert_clean(stand)


@pytest.mark.parametrize("how", ["error", "silence"])
async def test_without_an_answer_of_the_ledger_nothing_runs_elsewhere(how, monkeypatch):
    monkeypatch.setattr(credit, "REPIN_SECONDS", 0.01)
    stand = await make_two()

    async def before(operation):
        if isinstance(operation, Repin):
            if how == "error":
                raise WriterError("away")
            await asyncio.Event().wait()

    stand.writer.before = before
    with pytest.raises(Refusal) as caught:
        await start(stand)
    assert caught.value.status == 503
    assert stand.engine_of("spare").record.entries == {}
    assert len(stand.writer.of(Release)) == 1
    await assert_clean(stand)


async def test_a_hold_that_was_swept_meanwhile_is_not_pinned():
    stand = await make_two()

    async def before(operation):
        if isinstance(operation, Repin):
            stand.writer.holds.clear()

    stand.writer.before = before
    with pytest.raises(Refusal):
        await start(stand)
    assert stand.engine_of("spare").record.entries == {}


async def test_an_extension_for_the_old_price_changes_nothing_of_the_new_meter():
    """It is refused while the request moves: the answer at the new price still gets all of its tokens."""
    stand = await make_two(target={"hang_at": 1}, terms={"slice_tokens": 4})
    asked, answer = asyncio.Event(), asyncio.Event()
    real = stand.writer.submit

    async def submit(operation, seconds=None):
        if isinstance(operation, Extend) and not asked.is_set():
            asked.set()
            await answer.wait()
            return Refused("wallet", 0)
        return await real(operation, seconds)

    stand.writer.submit = submit
    starting = asyncio.ensure_future(start(stand))
    target = stand.engine_of("target")
    await target.hanging()
    generation = await stand.generation()
    generation._hold.meter.ask_early()
    generation._hold._follow()
    await asked.wait()
    await target.close()
    generation = await starting
    answer.set()
    _, outcome, text = await collect(generation)
    assert (text, outcome.error, outcome.sluice_reason) == (WHOLE, None, None)
    assert outcome.usage == Usage(input=100, output=TOKENS)
    await assert_clean(stand)


async def test_a_client_that_leaves_while_its_hold_is_pinned_is_charged_nothing():
    stand = await make_two()
    pinning, go = asyncio.Event(), asyncio.Event()

    async def before(operation):
        if isinstance(operation, Repin):
            pinning.set()
            await go.wait()

    stand.writer.before = before
    starting = asyncio.ensure_future(start(stand))
    await pinning.wait()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    go.set()
    await stand.settled()
    assert stand.engine_of("spare").record.entries == {}
    assert stand.writer.of(Settle) == []
    assert stand.writer.wallet.posted == 1_000_000
    await assert_clean(stand)


async def test_all_that_fail_are_told():
    stand = await make_two()
    spare = stand.engine_of("spare")
    spare.options = replace(spare.options, generate_error="unreachable")
    with pytest.raises(Refusal):
        await start(stand)
    [release] = stand.writer.of(Release)
    assert [one["model"] for one in release.facts.route["attempts"]] == ["target", "spare"]
    assert all(one["failed"] for one in release.facts.route["attempts"])
    await assert_clean(stand)


@pytest.mark.parametrize("kind", ["chat", "response"])
async def test_whole_answer_names_the_model_that_served_it(kind, monkeypatch):
    """What renders it was made while the target still tried."""
    monkeypatch.setattr(generation_module, "HEAD_SECONDS", 0)
    stand = await make_two(target={"hang_at": 1})
    generation = await start(stand, stream=False)
    if kind == "chat":
        messages = b'{"model": "auto", "messages": [{"role": "user", "content": "x"}]}'
        told = ChatFormat(generation, decode(ChatRequest, messages))
    else:
        request = decode(ResponseRequest, b'{"model": "auto", "input": "x"}')
        told = ResponseFormat(ResponseEvents(request, generation, with_account=True))
    await stand.engine_of("target").hanging()
    await stand.engine_of("target").close()
    events, outcome, _ = await collect(generation)
    for event in events:
        if isinstance(event, Delta):
            told.collect(event)
    whole = told.whole(outcome)
    assert whole.model == "spare"
    if kind == "response":
        assert [one["model"] for one in whole.sluice.route["attempts"]] == ["target", "spare"]
