"""What a request's end says of its engine: circuits open for engines that fail, wherever in an answer they do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from base.ids import uuid7
from gateway.errors.refusal import Refusal
from gateway.generation.generation import start_generation
from gateway.runtime.engines import FAILURES, has_failed
from inference.types import EngineFault, Finished, FinishReason, Usage
from tests.gateway.doubles import FAKE, collect, make_intent, make_principal, make_stand


async def ends(stand, count, tenant=None):
    """Return how so many requests of `tenant` end, by default each of another one."""
    found = []
    for _ in range(count):
        principal = make_principal(stand.principal.wallet, tenant=tenant)
        generation = await start_generation(stand.runtime, principal, make_intent(model=FAKE.name), uuid7())
        _, outcome, _ = await collect(generation)
        found.append(outcome.error.code if outcome.error else "")
    return found


@pytest.mark.parametrize(("option", "code"), [("error_at", "row_failed"), ("lose_at", "worker_lost")])
async def test_an_engine_that_breaks_off_its_answers_gets_no_more(option, code):
    """Each answer began well, which cleared what failed before: such an engine took nearly all requests for good."""
    stand = await make_stand(models=(FAKE,), tokens=10)
    engine = stand.engine_of(FAKE.name)
    engine.options = replace(engine.options, **{option: 3})
    assert await ends(stand, FAILURES) == [code] * FAILURES
    [entry] = stand.runtime.engines.entries()
    assert entry.breaker.state == "open"
    with pytest.raises(Refusal) as refused:
        await ends(stand, 1)
    assert refused.value.code == "no_ready_deployment"


@pytest.mark.parametrize("option", ["error_at", "lose_at"])
async def test_answers_that_break_off_for_one_tenant_take_the_engine_from_nobody_else(option):
    """Four requests for an adapter of a tenant's own kept the base and all adapters from everybody."""
    stand = await make_stand(models=(FAKE,), tokens=10)
    engine, bad = stand.engine_of(FAKE.name), uuid7()
    well = engine.options
    engine.options = replace(well, **{option: 3})
    await ends(stand, 2 * FAILURES, bad)
    [entry] = stand.runtime.engines.entries()
    assert entry.breaker.state == "closed"
    engine.options = well
    assert await ends(stand, 1) == [""]


async def test_an_answer_that_ends_well_clears_what_failed_before():
    stand = await make_stand(models=(FAKE,), tokens=10)
    engine = stand.engine_of(FAKE.name)
    well = engine.options
    [entry] = stand.runtime.engines.entries()
    for _ in range(2):
        engine.options = replace(well, error_at=3)
        await ends(stand, FAILURES - 1)
        engine.options = well
        assert await ends(stand, 1) == [""]
    assert entry.breaker.state == "closed"


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        (None, False),
        (EngineFault("step_failed", "twice"), True),
        (EngineFault("worker_lost", "gone", retryable=True), True),
        (EngineFault("queue_timeout", "busy", retryable=True), False),
        (EngineFault("non_finite_logits", "its own"), False),
        (EngineFault("non_finite_vector", "its own"), False),
        (EngineFault("out_of_memory", "no room", retryable=True), False),
        (EngineFault("engine_overloaded", "busy", retryable=True), False),
        (EngineFault("adapter_refused", "rank"), False),
        (EngineFault("invalid_request", "no token is left", param="allowed_token_ids"), False),
    ],
)
def test_what_an_engine_declined_or_a_request_made_impossible_is_no_failure(fault, failed):
    reason = FinishReason.ERROR if fault else FinishReason.STOP
    assert has_failed(Finished(reason, Usage(1), fault)) is failed
