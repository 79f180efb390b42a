"""What is an adapter's own, failures and times, is neither its base's nor another adapter's on the same replica."""

from __future__ import annotations

from dataclasses import replace

import pytest

from base.ids import uuid7
from gateway.errors.refusal import Refusal
from gateway.generation.generation import start_generation
from gateway.runtime import engines as engines_module
from inference.errors import EngineError, InvalidRequestError, OverloadedError
from routing.catalogue import RuleEntry
from tests.gateway.doubles import FAKE, collect, make_intent, make_stand

BASE, DESK, TONE = (
    replace(FAKE, name=name, base=base) for name, base in (("base", ""), ("desk", "base"), ("tone", "base"))
)
ADAPTERS = {"desk": "desk-id", "tone": "tone-id"}
FAILURES = {
    "adapter_refused": InvalidRequestError("it is too large", code="adapter_refused"),
    "adapters_in_use": OverloadedError("as many as fit are in use", code="adapters_in_use"),
    "adapter_not_ready": InvalidRequestError("no adapter 'desk-id'", code="unknown_adapter"),
}


async def make_adapters(targets=("desk",), fallbacks=("base",), **options):
    """A stand with one replica that serves a base and two adapters of it, and a rule for ``auto``."""
    rule = RuleEntry("r", "", "", None, None, *(tuple((name, 1) for name in names) for names in (targets, fallbacks)))
    stand = await make_stand(models=(BASE,), rules=(rule,), adapters=tuple(ADAPTERS.values()), **options)
    book = stand.runtime.catalogue.snapshot.catalogue
    [deployment] = book.deployments["base"]
    served = {name: (replace(deployment, model=name, adapter=key),) for name, key in ADAPTERS.items()}
    book = replace(
        book, models={one.name: one for one in (BASE, DESK, TONE)}, deployments={**book.deployments, **served}
    )
    stand.runtime.catalogue.snapshot = replace(stand.runtime.catalogue.snapshot, catalogue=book)
    return stand


def fail(stand, where, failure: EngineError, adapter="desk-id"):
    """Have the engine fail with that adapter alone; what it was asked for is returned as it goes on."""
    engine, seen = stand.engine_of("base"), []
    real = getattr(engine, where)

    async def prepare(request):
        seen.append(request.adapter)
        if request.adapter == adapter:
            raise failure
        return await real(request)

    async def generate(prepared, *rest):
        seen.append(prepared.request.adapter)
        if prepared.request.adapter == adapter:
            raise failure
        async for event in real(prepared, *rest):
            yield event

    setattr(engine, where, prepare if where == "prepare" else generate)
    return seen


async def run(stand, model="auto"):
    generation = await start_generation(stand.runtime, stand.principal, make_intent(model=model, max_tokens=4), uuid7())
    _, outcome, text = await collect(generation)
    return generation, outcome, text


async def assert_clean(stand):
    await stand.settled()
    assert (stand.writer.holds, stand.places()) == ({}, 0)
    assert not any(entry.requests or entry.uncached for entry in stand.runtime.engines.entries())


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("instead", ["base", "tone"])
async def test_base_and_other_adapters_serve_on_the_replica_where_an_adapter_fails(failure, instead):
    stand = await make_adapters(fallbacks=(instead,))
    seen = fail(stand, "prepare", failure)
    generation, outcome, text = await run(stand)
    assert (generation.route.model, outcome.error, text) == (instead, None, "w1 w2 w3 w4")
    assert seen == ["desk-id", ADAPTERS.get(instead, "")]
    attempts = generation.explain()["attempts"]
    assert [(one["model"], bool(one["failed"])) for one in attempts] == [("desk", True), (instead, False)]
    await assert_clean(stand)


async def test_base_serves_where_an_adapter_is_in_use_when_the_request_begins():
    stand = await make_adapters()
    fail(stand, "generate", FAILURES["adapters_in_use"])
    generation, outcome, text = await run(stand)
    assert (generation.route.model, outcome.error, text) == ("base", None, "w1 w2 w3 w4")
    await assert_clean(stand)


async def test_a_replica_that_itself_declines_is_asked_for_neither_base_nor_other_adapters():
    stand = await make_adapters()
    seen = fail(stand, "prepare", OverloadedError("full"))
    with pytest.raises(Refusal) as caught:
        await run(stand)
    assert (caught.value.code, seen) == ("engine_overloaded", ["desk-id"])
    await assert_clean(stand)


async def test_an_adapter_asked_for_by_name_ends_with_its_own_failure():
    stand = await make_adapters()
    seen = fail(stand, "prepare", FAILURES["adapters_in_use"])
    with pytest.raises(Refusal) as caught:
        await run(stand, "desk")
    assert (caught.value.status, caught.value.code, seen) == (503, "adapters_in_use", ["desk-id"])
    await assert_clean(stand)


async def test_what_the_worker_says_of_an_adapter_is_known_before_it_is_asked():
    stand = await make_adapters(targets=("desk", "base"), fallbacks=())
    engine = stand.engine_of("base")
    engine.options = replace(engine.options, refused_adapters={"desk-id": "it is too large"})
    generation, _, _ = await run(stand)
    assert (generation.route.model, engine.prepares) == ("base", 1)
    told = generation.explain()
    assert "attempts" not in told
    [signal] = [one for one in told["signals"] if one["step"] == "adapter"]
    assert signal["value"] == "desk: the adapter can't be served: it is too large"
    with pytest.raises(Refusal) as caught:
        await run(stand, "desk")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "adapter_refused", "model")
    await assert_clean(stand)


async def test_times_to_first_token_are_an_adapters_own(monkeypatch):
    stand = await make_adapters()
    engines = stand.runtime.engines
    [entry] = engines.entries()
    deployment = entry.deployment.id
    for _ in range(5):
        await run(stand, "desk")
    assert (engines.ttft_ms(deployment, 50, "desk-id") is None, engines.ttft_ms(deployment, 50)) == (False, None)
    for _ in range(5):
        entry.took(700)
        entry.took(90_000, "tone-id")
    assert (engines.ttft_ms(deployment, 50), engines.ttft_ms(deployment, 50, "tone-id")) == (700, 90_000)
    monkeypatch.setattr(engines_module, "TTFT_ADAPTERS", 2)
    entry.took(1, "another")
    assert (len(entry.ttfts("another")), len(entry.ttfts("tone-id")), entry.ttfts("desk-id")) == (1, 5, [])
    assert len(entry._ttfts) <= 3
