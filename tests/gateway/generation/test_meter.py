"""The meter: what is held, what that buys, and when more is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from base.ids import uuid7
from billing import rating
from billing.rating import CardPrices, charge
from gateway.generation.credit import HoldRequest, Meter
from inference.types import Usage
from tests.gateway.doubles import CARD


def make_meter(prompt=100, max_output=1000, slice_tokens=16, *, card=CARD, can_extend=True):
    return Meter(
        card,
        10_000,
        prompt_tokens=prompt,
        max_output=max_output,
        slice_tokens=slice_tokens,
        can_extend=can_extend,
    )


def test_first_hold_is_cut_to_what_may_be_taken_at_once_but_buys_one_token():
    assert make_meter().first_hold(10**9) == HoldRequest(1640, 1040)
    assert make_meter().first_hold(1500) == HoldRequest(1500, 1040)
    assert make_meter().first_hold(10) == HoldRequest(1040, 1040)


def test_what_cannot_be_extended_is_held_for_whole_and_its_allowance_is_final():
    meter = make_meter(can_extend=False)
    first = meter.first_hold(10**9)
    assert first == HoldRequest(1000 + 1000 * 40, 1040)
    meter.granted(first.amount)
    assert (meter.allowed, meter.short_of, meter.next_hold()) == ((1000, True), None, None)
    meter.used(Usage(input=100, output=999))
    assert meter.next_hold() is None


def test_what_the_hold_buys_is_worked_out_once_where_nothing_was_cached(monkeypatch):
    worked_out = []
    buys = rating.output_tokens_for
    monkeypatch.setattr(rating, "output_tokens_for", lambda *asked: worked_out.append(asked) or buys(*asked))
    meter = make_meter()
    meter.granted(1640)
    assert meter.allowed == (16, False)
    meter.started(0)
    assert (meter.allowed, len(worked_out)) == ((16, False), 1)
    meter.started(40)
    assert (meter.allowed[0] > 16, len(worked_out)) == (True, 2)


@pytest.mark.parametrize("can_extend", [True, False])
def test_begun_anew_it_buys_no_more_than_before_it_was_known_what_is_cached(can_extend):
    meter = make_meter(can_extend=can_extend)
    meter.first_hold(1640)
    meter.granted(1640)
    first = meter.allowed
    meter.started(100)
    assert meter.allowance > first[0] or not can_extend
    meter.restart()
    assert meter.allowed == first
    meter.started(50)
    assert meter.allowed[0] == (16 + 11 if can_extend else 16)


def test_what_cannot_be_extended_gets_what_the_credit_allows():
    meter = make_meter(can_extend=False)
    meter.first_hold(10**9)
    meter.granted(1000 + 7 * 40 + 39)
    assert (meter.allowed, meter.short_of, meter.next_hold()) == ((7, True), "credit_exhausted", None)


def test_what_cannot_be_extended_is_no_longer_than_may_be_taken_at_once():
    meter = make_meter(can_extend=False)
    assert meter.first_hold(1000 + 50 * 40 + 1) == HoldRequest(1000 + 50 * 40, 1040)
    meter.granted(1000 + 50 * 40)
    assert (meter.max_output, meter.allowed, meter.short_of) == (50, (50, True), None)
    assert make_meter(can_extend=False).first_hold(10) == HoldRequest(1040, 1040)


def test_a_prompt_that_a_foreign_server_counts_shorter_costs_no_more_than_is_held():
    """Its shorter contexts cost more: the charge was above the hold, and the wallet below its limit."""
    rates = [(0, "input", 90_000_000), (0, "output", 50_000_000), (60, "input", 1_000_000), (60, "output", 2_000_000)]
    meter = make_meter(100, 20, card=CardPrices.build(uuid7(), 3, rates), can_extend=False)
    first = meter.first_hold(10**9)
    meter.granted(first.amount)
    assert meter.allowed == (20, True)
    assert meter.charge(Usage(input=59, output=20)) <= first.amount == 100 * 90 + 20 * 50 + 3


def test_allowance_never_exceeds_max_output():
    meter = make_meter(max_output=5)
    meter.granted(10**9)
    assert meter.allowance == 5
    assert meter.allowed == (5, True)


def test_more_is_asked_for_at_half_a_slice():
    meter = make_meter()
    meter.granted(1640)
    meter.started(0)
    meter.used(Usage(input=100, output=7))
    assert meter.next_hold() is None
    meter.used(Usage(input=100, output=8))
    assert meter.next_hold() == HoldRequest(1000 + (16 + 32) * 40, 1000 + 17 * 40)


def test_more_is_asked_for_at_a_whole_slice_where_answers_take_long():
    meter = make_meter()
    meter.granted(1640)
    meter.ask_early()
    meter.used(Usage(input=100, output=0))
    assert meter.next_hold() == HoldRequest(1000 + (16 + 32) * 40, 1000 + 17 * 40)
    meter.extended(meter.next_hold(), 1000 + 48 * 40)
    meter.used(Usage(input=100, output=15))
    assert meter.next_hold() is None
    meter.used(Usage(input=100, output=16))
    assert meter.next_hold().amount == 1000 + (48 + 64) * 40


def test_slices_double_up_to_a_cap():
    meter = make_meter(max_output=100_000)
    meter.granted(1640)
    grown = []
    for _ in range(11):
        meter.used(Usage(input=100, output=meter.allowance))
        request = meter.next_hold()
        before = meter.allowance
        meter.extended(request, request.amount)
        grown.append(meter.allowance - before)
    assert grown == [32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096]


def test_short_extension_is_not_the_last():
    meter = make_meter()
    meter.granted(1640)
    meter.used(Usage(input=100, output=10))
    request = meter.next_hold()
    meter.extended(request, request.least)
    assert meter.allowed == (17, False)
    assert meter.next_hold() == HoldRequest(1000 + (17 + 32) * 40, 1000 + 18 * 40)


def test_refusal_before_the_allowance_waits_for_it_and_there_it_is_final():
    meter = make_meter()
    meter.granted(1640)
    meter.used(Usage(input=100, output=10))
    meter.refused(meter.next_hold())
    assert (meter.allowed, meter.next_hold()) == ((16, False), None)
    meter.used(Usage(input=100, output=15))
    assert meter.next_hold() is None
    meter.used(Usage(input=100, output=16))
    request = meter.next_hold()
    assert request == HoldRequest(1000 + (16 + 32) * 40, 1000 + 17 * 40, is_final=True)
    meter.refused(request)
    assert (meter.allowed, meter.next_hold()) == ((16, True), None)


def test_credit_that_came_back_after_a_refusal_is_used():
    meter = make_meter()
    meter.granted(1640)
    meter.used(Usage(input=100, output=10))
    meter.refused(meter.next_hold())
    meter.used(Usage(input=100, output=16))
    request = meter.next_hold()
    meter.extended(request, request.amount)
    assert meter.allowed == (48, False)
    assert meter.short_of is None


DEAR_REASONING = CardPrices.build(
    uuid7(),
    7,
    [(0, "input", 3_333_333), (0, "cache_read", 123_457), (0, "output", 7_777_777), (0, "reasoning", 9_999_991)],
)


@given(
    prompt=st.integers(1, 5000),
    cached=st.floats(0, 1),
    held=st.integers(0, 100_000),
    output=st.integers(0, 2000),
    reasoning=st.integers(0, 2000),
)
def test_allowance_is_always_paid_for_and_one_more_token_is_not(prompt, cached, held, output, reasoning):
    meter = make_meter(prompt, 10**6, card=DEAR_REASONING)
    meter.granted(held)
    cached = min(int(prompt * cached), prompt - 1)
    meter.started(cached)
    if output or reasoning:
        meter.used(Usage(prompt - cached, cached, output, reasoning))
    more = meter.allowance - output - reasoning
    assert more >= 0

    def cost(extra):
        classes = {"input": prompt - cached, "cache_read": cached, "output": output, "reasoning": reasoning + extra}
        return charge(classes, DEAR_REASONING, 10_000)

    assert more == 0 or cost(more) <= held
    assert cost(more + 1) > held


@settings(deadline=None)
@given(
    rates=st.tuples(st.integers(0, 20), st.integers(0, 200)),
    cached=st.integers(0, 100),
    credit=st.integers(1040, 60_000),
    max_output=st.integers(1, 1500),
    names=st.lists(st.sampled_from(["output", "reasoning"]), min_size=1, max_size=9),
)
@example(rates=(1, 10), cached=0, credit=60_000, max_output=300, names=["output"])
def test_an_engine_that_keeps_to_its_allowance_stands_still_only_where_the_credit_ends(
    rates, cached, credit, max_output, names
):
    output, reasoning = (rate * 10**6 for rate in rates)
    rows = [(0, "input", 10**7), (0, "cache_read", 10**6), (0, "output", output), (0, "reasoning", reasoning)]
    card = CardPrices.build(uuid7(), 0, rows)
    meter = make_meter(100, max_output, card=card)
    first = meter.first_hold(10**9)
    assume(credit >= first.least)
    meter.granted(min(credit, first.amount))
    told = meter.permit()
    meter.started(cached)
    usage = Usage(input=100 - cached, cache_read=cached)
    while usage.completion < told[0]:
        name = names[usage.completion % len(names)]
        usage = replace(usage, **{name: getattr(usage, name) + 1})
        meter.used(usage)
        assert meter.charge(usage) <= meter.held
        while True:
            if meter.is_short and meter.has_more:
                assert told[0] < meter.allowance or meter.allowed[1]
                told = meter.permit()
            elif (request := meter.next_hold()) is None:
                break
            elif credit >= request.least:
                meter.extended(request, min(credit, request.amount))
            else:
                meter.refused(request)
    assert told[1], "an engine waits for more only where it was not told that this is all"
    if usage.completion < max_output:
        assert meter.short_of
        dearest = {"reasoning" if reasoning >= output else "output": 1}
        assert credit < meter.charge(replace(usage, **{n: getattr(usage, n) + more for n, more in dearest.items()}))


def test_nothing_is_worked_out_while_the_engine_has_enough(monkeypatch):
    meter = make_meter(max_output=300, slice_tokens=256, card=DEAR_REASONING)
    meter.granted(meter.first_hold(10**9).amount)
    meter.permit()
    meter.started(0)
    monkeypatch.setattr(rating, "output_tokens_for", None)
    for tokens in range(127):
        meter.used(Usage(input=100, output=tokens))
        assert not meter.is_short
