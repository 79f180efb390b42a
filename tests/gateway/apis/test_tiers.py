"""Service tiers: what they mean for the engine, and that the answer says which it was."""

from __future__ import annotations

from math import ceil
from uuid import UUID

import pytest

from billing.rating import batch_multiplier
from gateway.generation.admission import request_of
from gateway.runtime.principals import LOWEST_BAND
from tests.gateway.apis.client import ask
from tests.gateway.apis.world import PRICES

HI = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}


async def sent(app, world, path="/v1/chat/completions", **more):
    """The answer, and the request as an engine gets it."""
    answer = await ask(app, path, {"model": "small", **BODIES[path], **more})
    assert answer.status == 200, answer.body
    return answer, request_of(world.principal(), world.intent, "id")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("asked", "told"), [("auto", "default"), ("flex", "flex"), ("priority", "priority")])
async def test_the_answer_says_its_tier(app, world, path, asked, told):
    answer, _ = await sent(app, world, path, service_tier=asked)
    assert answer.json()["service_tier"] == told
    answer, _ = await sent(app, world, path, service_tier=asked, stream=True)
    datas = [data for _, data in answer.events() if isinstance(data, dict)]
    tiers = {one["service_tier"] for data in datas for one in (data, data.get("response", {})) if "service_tier" in one}
    assert tiers == {told}


async def test_a_tier_is_a_place_in_the_queue(app, world):
    _, default = await sent(app, world)
    _, first = await sent(app, world, service_tier="priority", priority=1000)
    _, earliest = await sent(app, world, priority=-1000)
    _, flex = await sent(app, world, service_tier="flex", priority=-1000)
    assert first.priority > earliest.priority > default.priority
    assert first.band == earliest.band == default.band == 0  # between tenants nothing is gained
    assert LOWEST_BAND < flex.band < -(2**15)  # a plan's priority has 16 bits
    assert flex.tenant != default.tenant == first.tenant, "one queue has one band: flex held up all that waited in it"
    assert flex.domain == default.domain


@pytest.mark.parametrize(("tier", "factor"), [("default", 1), ("flex", 0.5), ("priority", 2)])
async def test_a_tier_has_its_price(app, world, tier, factor):
    plain, _ = await sent(app, world)
    world.set_principal(flex_bp=5_000, priority_bp=20_000)
    answer, _ = await sent(app, world, service_tier=tier)
    tokens = plain.json()["usage"]["credits_micro"] - PRICES.request_fee
    assert answer.json()["usage"]["credits_micro"] == ceil(tokens * factor) + PRICES.request_fee, "the fee has no tier"
    line = world.principal().for_batch(UUID(int=2), 4)
    card = PRICES
    assert line.multiplier_at(card, tier) == batch_multiplier(10_000, card), "batches have no tier"


async def test_lines_of_batches_stay_behind_all_others(app, world):
    await sent(app, world, service_tier="flex")
    line = world.principal().for_batch(UUID(int=2), 4)
    request = request_of(line, world.intent, "id")
    assert (request.band, request.tenant) == (LOWEST_BAND, line.queue)
