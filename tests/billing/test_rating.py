from __future__ import annotations

from fractions import Fraction
from math import ceil
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.units import format_credits, parse_credits
from billing import rating
from billing.rating import CardPrices, CardPricesError, charge, output_tokens_for, shares

CARD = UUID(int=1)
tokens = st.integers(0, 3_000_000)
classes = st.dictionaries(st.sampled_from(rating.CLASSES), tokens)
rates = st.integers(0, 10**11)
multipliers = st.integers(0, 100_000)


@st.composite
def cards(draw: st.DrawFn) -> CardPrices:
    rows = []
    for start in {0, *draw(st.lists(st.integers(1, 5_000_000), max_size=3))}:
        rows += [(start, "input", draw(rates)), (start, "output", draw(rates))]
        rows += [(start, name, draw(rates)) for name in ("cache_read", "reasoning") if draw(st.booleans())]
    return CardPrices.build(CARD, draw(st.integers(0, 10**6)), rows)


@given(classes, cards(), multipliers)
def test_charge_is_the_exact_sum_rounded_up_once(used, card, multiplier):
    context = sum(used.get(name, 0) for name in rating.INPUT_CLASSES)
    tier = [tier for tier in card.tiers if tier.min_context <= context][-1]
    exact = sum(Fraction(count * tier.rates[name] * multiplier, 10**10) for name, count in used.items())
    expected = ceil(exact) + card.request_fee if any(used.values()) else 0
    assert charge(used, card, multiplier) == expected


@given(classes, cards(), multipliers)
def test_shares_add_up_to_the_charge_and_each_is_within_one(used, card, multiplier):
    parts = shares(used, card, multiplier)
    assert sum(parts.values()) == charge(used, card, multiplier)
    rates_now = card.rates_for(rating.context_of(used))
    for name, part in parts.items():
        if name != "request":
            assert 0 <= part - used[name] * rates_now[name] * multiplier // 10**10 <= 1


@given(st.integers(0, 10**12), classes, cards(), multipliers)
def test_output_tokens_for_is_the_greatest_that_fits(amount, used, card, multiplier):
    n = output_tokens_for(amount, used, card, multiplier)
    dearest = rating.dearest_output_class(rating.context_of(used), card)

    def cost(more: int) -> int:
        return charge({**used, dearest: used.get(dearest, 0) + more}, card, multiplier)

    if n:
        assert cost(n) <= amount
    if n < rating.MAX_TOKENS:
        assert cost(n + 1) > amount


@given(st.integers(0, 100_000), st.data(), cards(), multipliers, st.integers(0, 5_000))
def test_first_hold_covers_every_split_of_the_prompt(prompt, data, card, multiplier, output):
    held_for = {**rating.dearest_input(prompt, card), rating.dearest_output_class(prompt, card): output}
    hold = rating.charge(held_for, card, multiplier)
    cached = data.draw(st.integers(0, prompt))
    thought = data.draw(st.integers(0, output))
    used = {"input": prompt - cached, "cache_read": cached, "output": output - thought, "reasoning": thought}
    assert charge(used, card, multiplier) <= hold


@given(st.integers(0, 100_000), st.data(), cards(), multipliers, st.integers(0, 5_000))
def test_what_is_held_for_a_prompt_that_may_be_shorter_covers_every_shorter_one(prompt, data, card, multiplier, output):
    by = card.dearest_up_to(prompt)
    held_for = {**rating.dearest_input(prompt, by), rating.dearest_output_class(prompt, by): output}
    used = {"input": data.draw(st.integers(0, prompt)), "reasoning": output}
    assert charge(used, card, multiplier) <= charge(held_for, by, multiplier)


def test_a_prompt_that_reaches_one_tier_is_held_for_at_its_rates():
    card = CardPrices.build(CARD, 7, [(0, "input", 9), (0, "output", 1), (50, "input", 2), (50, "output", 4)], 3_000)
    assert card.dearest_up_to(49) is card
    assert (dict(card.dearest_up_to(50).rates_for(0)), card.dearest_up_to(50).request_fee) == (
        dict.fromkeys(rating.INPUT_CLASSES, 9) | dict.fromkeys(rating.OUTPUT_CLASSES, 4),
        7,
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), cards(), multipliers)
def test_slices_of_a_stream_add_up_to_the_whole(slices, card, multiplier):
    done, paid = 0, 0
    for size in slices:
        before = charge({"input": 100, "output": done}, card, multiplier) if done else 0
        done += size
        paid += charge({"input": 100, "output": done}, card, multiplier) - before
    assert paid == charge({"input": 100, "output": sum(slices)}, card, multiplier)


def test_tier_is_chosen_by_the_whole_context():
    rows = [(0, "input", 10), (0, "output", 0), (1000, "input", 30), (1000, "output", 0), (1000, "cache_read", 20)]
    card = CardPrices.build(CARD, 0, rows)
    assert charge({"input": 999_999 // 1000}, card, 10_000) == 1
    assert charge({"input": 500, "cache_read": 500}, card, 10**10) == 500 * 30 + 500 * 20


def test_missing_classes_take_their_parents_rate_and_missing_parents_are_refused():
    card = CardPrices.build(CARD, 0, [(0, "input", 7), (0, "output", 9), (0, "cache_read", 1)])
    assert dict(card.tiers[0].rates) == {
        "input": 7, "cache_read": 1, "cache_write_short": 7, "cache_write_long": 7, "output": 9, "reasoning": 9,
    }  # fmt: skip
    for rows in ([(0, "input", 7)], [(1, "input", 7), (1, "output", 7)], [(0, "input", -1), (0, "output", 1)]):
        with pytest.raises(CardPricesError):
            CardPrices.build(CARD, 0, rows)


def test_nothing_used_costs_nothing_and_bad_classes_are_refused():
    card = CardPrices.build(CARD, 5, [(0, "input", 7), (0, "output", 9)])
    assert charge({}, card, 10_000) == charge({"input": 0}, card, 10_000) == 0
    assert charge({"input": 1}, card, 0) == 5
    for bad in ({"input": -1}, {"inputs": 1}):
        with pytest.raises(ValueError):
            charge(bad, card, 10_000)


@given(st.integers(-(2**63), 2**63 - 1).filter(lambda n: n > -(2**63)))
def test_credits_survive_writing_and_reading(micro):
    assert parse_credits(format_credits(micro)) == micro


@pytest.mark.parametrize("text", ["", "1.0000001", "1e3", "٣", "--1", "1.", "99999999999999"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError):
        parse_credits(text)


def test_credits_are_written_short():
    assert [format_credits(n) for n in (0, 1, 1_500_000, -20)] == ["0", "0.000001", "1.5", "-0.00002"]


@given(multipliers, st.integers(0, 10_000))
def test_a_batchs_multiplier_is_its_part_of_the_plans_rounded_up(multiplier, part):
    card = CardPrices.build(CARD, 7, [(0, "input", 1), (0, "output", 1)], part)
    assert rating.batch_multiplier(multiplier, card) == ceil(Fraction(multiplier * part, 10_000))
