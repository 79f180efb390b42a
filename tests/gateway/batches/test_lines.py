"""How a line of a batch runs: at the card's rate for batches, behind everybody, past its tenant's rates."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from base.ids import uuid7
from billing.rating import CardPrices, charge
from billing.writer.operations import Repin, Reserve, Settle
from gateway.errors.refusal import Refusal
from gateway.generation.admission import request_of
from gateway.generation.generation import start_generation
from gateway.http.access import require_use
from gateway.runtime.principals import LOWEST_BAND
from tenancy.services.networks import parsed_networks
from tests.gateway.doubles import CARD, FAKE, collect, make_intent, make_stand
from tests.gateway.generation.test_fallback import make_two

HALF = CardPrices.build(CARD.id, 5, [(0, name, rate) for name, rate in CARD.tiers[0].rates.items()], 5_000)
TWO_THIRDS = CardPrices.build(uuid7(), 0, [(0, name, rate) for name, rate in CARD.tiers[0].rates.items()], 6_667)


def line(stand, concurrency=2):
    return stand.principal.for_batch(uuid7(), concurrency)


async def start(stand, principal, **fields):
    return await start_generation(stand.runtime, principal, make_intent(**fields), uuid7())


async def test_it_costs_the_cards_part_and_its_record_says_of_which_batch_it_was():
    stand = await make_stand(card=HALF, tokens=7, terms={"multiplier_bp": 15_001})
    principal = line(stand)
    _, outcome, _ = await collect(await start(stand, principal))
    [reserve], [settle] = stand.writer.of(Reserve), stand.writer.of(Settle)
    assert reserve.multiplier_bp == 7_501
    assert outcome.charge == settle.charge == charge(settle.classes, HALF, 7_501)
    assert reserve.facts.route["batch"] == f"batch_{principal.batch.hex}"
    await collect(await start(stand, stand.principal))
    assert stand.writer.of(Reserve)[1].multiplier_bp == 15_001
    assert "batch" not in stand.writer.of(Reserve)[1].facts.route


async def test_one_that_moves_costs_the_part_of_the_card_where_it_runs():
    stand = await make_two(card=HALF, spare_card=TWO_THIRDS)
    _, outcome, _ = await collect(await start(stand, line(stand), model="auto"))
    [reserve], [repin], [settle] = (stand.writer.of(kind) for kind in (Reserve, Repin, Settle))
    assert (reserve.multiplier_bp, repin.multiplier_bp) == (5_000, 6_667)
    assert outcome.charge == settle.charge == charge(settle.classes, TWO_THIRDS, 6_667)


async def test_a_label_costs_the_part_of_what_its_text_does():
    sorter = replace(FAKE, name="sorter", kinds=frozenset({"classification"}))
    stand = await make_stand(models=(sorter,), card=HALF)
    ticket = "Labels: red, blue\n\nmy blue car"
    _, outcome, text = await collect(await start(stand, line(stand), model="sorter", prompt=ticket))
    [settle] = stand.writer.of(Settle)
    assert (text, settle.classes) == ("blue", {"input": 5})
    assert outcome.charge == settle.charge == charge(settle.classes, HALF, 5_000)


async def test_it_takes_nothing_of_its_tenants_rates():
    stand = await make_stand(tokens=2)
    generation = await start(stand, line(stand))
    assert generation.rate_states == ()
    await collect(generation)
    other = await start(stand, stand.principal)
    [requests] = [state for state in other.rate_states if state.name == "requests"]
    assert requests.remaining == stand.principal.request_bucket.burst - 1
    await collect(other)
    assert stand.places() == 0


async def test_a_full_batch_keeps_no_other_request_of_its_tenant_waiting():
    stand = await make_stand(hang_at=1, terms={"concurrency": 1})
    principal = line(stand, concurrency=2)
    hung = [asyncio.create_task(start(stand, principal)) for _ in range(2)]
    await stand.generation(1)
    third = asyncio.create_task(start(stand, principal))
    mine = asyncio.create_task(start(stand, stand.principal))
    assert (await stand.generation(2)).principal is stand.principal
    assert stand.runtime.requests.gate.waiting == 1
    third.cancel()
    for generation in stand.runtime.requests.generations:
        generation.client_left()
    await asyncio.gather(*hung, mine, third, return_exceptions=True)
    await stand.settled()
    assert (stand.places(), len(stand.runtime.requests.gate)) == (0, 0)


async def test_engines_take_it_last_and_lend_its_rows_but_share_its_tenants_cache():
    stand = await make_stand()
    request = request_of(line(stand), make_intent(), "x")
    other = request_of(replace(stand.principal, priority=-(2**15)), make_intent(), "y")
    assert request.band == LOWEST_BAND < other.band
    assert request.weight == stand.principal.weight // 100
    assert request.tenant != other.tenant
    assert request.domain == other.domain
    assert line(await make_stand(terms={"weight": 5})).weight == 1


async def test_a_key_with_a_list_of_addresses_made_its_batch_from_one_of_them():
    stand = await make_stand()
    principal = replace(stand.principal, networks=parsed_networks(["10.0.0.0/8"]), key_concurrency=1)
    with pytest.raises(Refusal, match="your address"):
        require_use(principal, "chat", "127.0.0.1")
    require_use(principal.for_batch(uuid7(), 2), "chat", "127.0.0.1")


async def test_without_credit_it_is_refused_like_all_else():
    stand = await make_stand(credit=1)
    with pytest.raises(Refusal, match="needs at least"):
        await start(stand, line(stand))
    await stand.settled()
    assert stand.places() == 0
