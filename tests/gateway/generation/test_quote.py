"""Quotes: at most and probably, by the lengths of whose answers, at which prices; and that asking costs nothing."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from base.ids import uuid7
from billing import rating
from billing.rating import CardPrices
from billing.selectors.usage import Lengths
from gateway.generation.counting import Cliff, quote
from gateway.generation.generation import start_generation
from gateway.runtime import lengths
from gateway.runtime.lengths import ASSUMED, FRESH_SECONDS, LEAST, UsualLengths
from tests.gateway.doubles import CARD, collect, make_intent, make_stand


class Direct:
    """Runs what is to run on a database thread at once, and counts it."""

    def __init__(self):
        self.owners = []

    async def run(self, work, owner=None):
        self.owners.append(owner)
        return work()


@pytest.fixture
def known(monkeypatch):
    """What the records say: lengths by tenant (None: everybody's) and model."""
    found = {}
    monkeypatch.setattr(lengths, "usual_lengths", lambda tenant: found.get(tenant, {}))
    return found


async def make(known, **options):
    stand = await make_stand(**options)
    now = [0.0]
    stand.runtime.lengths = UsualLengths(Direct(), lambda: now[0])
    return stand, now


async def test_no_answer_costs_more_than_the_quote_says(known):
    stand, _ = await make(known, tokens=40)
    for bound in (1, 7, 40):
        intent = make_intent(bound)
        told = await quote(stand.runtime, stand.principal, intent, uuid7())
        assert stand.writer.operations == [] or bound > 1
        generation = await start_generation(stand.runtime, stand.principal, intent, uuid7())
        _, outcome, _ = await collect(generation)
        await stand.settled()
        assert outcome.usage.completion == bound
        assert 0 < outcome.charge <= told.most
        assert told.half <= told.nine_in_ten <= told.most
        assert told.most == rating.charge({"input": 100, "output": bound}, CARD, stand.principal.multiplier_bp)


async def test_an_answer_is_as_long_as_the_tenants_own_else_as_the_models_else_assumed(known):
    stand, now = await make(known)
    tenant, intent = stand.principal.tenant, make_intent(500)

    async def told():
        return await quote(stand.runtime, stand.principal, intent, uuid7())

    first = await told()
    assert (first.usual.basis, first.usual.lengths) == ("assumed", ASSUMED)
    assert stand.runtime.lengths._threads.owners == [tenant, UUID(int=0)]
    known[None] = {"fake": Lengths(900, 30, 60)}
    known[tenant] = {"fake": Lengths(LEAST - 1, 5, 6), "other": Lengths(99, 1, 1)}
    assert (await told()).usual.basis == "assumed", "read a while ago"
    now[0] += FRESH_SECONDS
    general = await told()
    assert (general.usual.basis, general.usual.lengths.p50) == ("model", 30)
    card = {"card": CARD, "multiplier_bp": stand.principal.multiplier_bp}
    assert general.half == rating.charge({"input": 100, "output": 30}, **card)
    assert general.nine_in_ten == rating.charge({"input": 100, "output": 60}, **card)
    known[tenant] = {"fake": Lengths(LEAST, 5, 6)}
    now[0] += FRESH_SECONDS
    assert (await told()).usual == (Lengths(LEAST, 5, 6), "own")
    reads = len(stand.runtime.lengths._threads.owners)
    for _ in range(5):
        await told()
    assert len(stand.runtime.lengths._threads.owners) == reads, "kept in memory"


async def test_answers_are_no_longer_than_they_may_be_and_there_are_as_many_as_asked_for(known):
    stand, _ = await make(known)
    known[None] = {"fake": Lengths(900, 30, 60)}
    short = await quote(stand.runtime, stand.principal, make_intent(10), uuid7())
    assert short.half == short.nine_in_ten == short.most
    sampling = replace(make_intent(100).sampling, n=3)
    several = await quote(stand.runtime, stand.principal, make_intent(sampling=sampling), uuid7())
    assert several.half == rating.charge({"input": 100, "output": 90}, CARD, stand.principal.multiplier_bp)


@pytest.mark.parametrize(("start", "is_near"), [(84, True), (120, True), (125, True), (130, False), (50, False)])
async def test_a_tier_that_begins_near_the_prompts_length_is_told_with_its_step(known, start, is_near):
    rates = [
        (0, "input", 10_000_000),
        (0, "output", 40_000_000),
        (start, "input", 30_000_000),
        (start, "output", 10**8),
    ]
    card = CardPrices.build(UUID(int=9), 0, rates)
    stand, _ = await make(known, card=card)
    told = await quote(stand.runtime, stand.principal, make_intent(10), uuid7())
    if not is_near:
        assert told.cliff is None
        return
    below = rating.charge({"input": start - 1, "output": 10}, card, stand.principal.multiplier_bp)
    above = rating.charge({"input": start, "output": 10}, card, stand.principal.multiplier_bp)
    assert told.cliff == Cliff(start, below, above)
    assert above > 2 * below


async def test_a_quote_holds_and_charges_nothing_and_a_persons_takes_no_request(known):
    stand, _ = await make(known)
    told = await quote(stand.runtime, stand.principal, make_intent(10), uuid7())
    assert told.counted.headers["x-ratelimit-remaining-requests"] == "59"
    person = replace(stand.principal, api_key=None, user=UUID(int=3))
    for _ in range(3):
        told = await quote(stand.runtime, person, make_intent(10), uuid7())
        assert "x-ratelimit-remaining-requests" not in told.counted.headers
    again = await quote(stand.runtime, stand.principal, make_intent(10), uuid7())
    assert again.counted.headers["x-ratelimit-remaining-requests"] == "58"
    assert stand.writer.operations == []
    assert stand.engine._prepared == {}
    assert stand.places() == 0
