"""The operator's cost: its fit, its money, and the card that it proposes."""

from __future__ import annotations

import itertools
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.ids import uuid7
from base.units import MICRO
from billing import costs, rating
from billing.costs import CostRates, DevicePrice, Window, fit, nnls, proposed, terms_of
from billing.rating import CLASSES, CardPrices

TRUE = (80e-6, 9e-9, 4e-3, 30e-9, 2e-6, 3e-3)
"""Seconds per term of a synthetic engine."""
HOUR = DevicePrice(200 * MICRO)


def brute(rows, target):
    """The least squares over each subset of columns; of those without a negative the nearest."""
    matrix, aim = np.array(rows), np.array(target)
    best, found = float(np.sum(aim**2)), np.zeros(matrix.shape[1])
    for size in range(1, matrix.shape[1] + 1):
        for columns in itertools.combinations(range(matrix.shape[1]), size):
            x, *_ = np.linalg.lstsq(matrix[:, columns], aim, rcond=None)
            error = float(np.sum((matrix[:, columns] @ x - aim) ** 2))
            if x.min() >= 0 and error < best:
                best, found = error, np.zeros(matrix.shape[1])
                found[list(columns)] = x
    return best, found


@pytest.mark.parametrize("seed", range(40))
def test_least_squares_without_negatives_are_those_of_brute_force(seed):
    draw = np.random.default_rng(seed)
    width, height = int(draw.integers(1, 7)), int(draw.integers(7, 30))
    rows = draw.normal(size=(height, width)) * 10.0 ** draw.integers(-6, 6, size=width)
    target = draw.normal(size=height) + rows @ (draw.normal(size=width) / np.abs(rows).max(axis=0))
    best, wanted = brute(rows, target)
    found = np.array(nnls(rows.tolist(), target.tolist()))
    assert found.min() >= 0
    assert float(np.sum((rows @ found - target) ** 2)) == pytest.approx(best, rel=1e-6)
    scale = np.abs(rows).max(axis=0)
    assert found * scale == pytest.approx(wanted * scale, abs=1e-5)


def test_columns_that_depend_on_others_or_have_nothing_are_left_out():
    rows = [[float(n), 2.0 * n, 0.0, 1.0] for n in range(1, 8)]
    found = nnls(rows, [6.0 * n + 2 for n in range(1, 8)])
    assert found[2] == 0
    assert [sum(a * b for a, b in zip(row, found, strict=True)) for row in rows] == pytest.approx(
        [6.0 * n + 2 for n in range(1, 8)]
    )


def windows(seed, number, noise, *, requests=12):
    """Windows of a synthetic engine with `TRUE` costs and that relative noise."""
    draw = Random(seed)
    found = []
    for _ in range(number):
        usages = []
        for _ in range(requests):
            prompt = round(16 * 256 ** draw.random())
            cached = round(prompt * draw.random()) if draw.random() < 0.3 else 0
            usages.append({"input": prompt - cached, "cache_read": cached, "output": round(128 ** draw.random())})
        terms = tuple(map(sum, zip(*(terms_of(one) for one in usages), strict=True)))
        seconds = sum(each * count for each, count in zip(TRUE, terms, strict=True))
        found.append(Window(terms, seconds * draw.gauss(1, noise)))
    return found


def test_a_synthetic_engines_costs_are_found_again():
    found = fit(windows(1, 12, 0))
    assert found.seconds == pytest.approx(TRUE, rel=1e-6)
    assert found.residual < 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_a_held_out_mix_is_recovered_under_noise(seed):
    found = fit(windows(seed, 24, 0.08))
    assert min(found.seconds) >= 0
    assert found.recovery(windows(seed + 1000, 40, 0)) == pytest.approx(1, abs=0.05)
    assert 0.01 < found.residual < 0.12


def test_windows_that_others_slowed_down_make_nothing_cheaper():
    draw = Random(5)
    slowed = [Window(one.terms, one.seconds * draw.choice((1, 1, 3))) for one in windows(5, 120, 0)]
    mean = sum(one.seconds for one in slowed) / sum(one.seconds for one in windows(5, 120, 0))
    assert fit(slowed).recovery(windows(6, 40, 0)) == pytest.approx(mean, rel=0.1)


def test_a_fit_refuses_what_says_too_little():
    with pytest.raises(ValueError, match="6 windows"):
        fit(windows(1, 5, 0))
    with pytest.raises(ValueError, match="took some time"):
        fit([*windows(1, 8, 0), Window((1, 1, 1, 1, 1, 1), 0.0)])


USAGE = st.fixed_dictionaries({}, optional={name: st.integers(0, 200_000) for name in CLASSES})
RATES = st.builds(CostRates, *[st.integers(0, 10**9)] * 6)


@given(RATES, USAGE, st.sampled_from(CLASSES), st.integers(1, 5_000))
def test_a_cost_is_rounded_once_and_no_usage_lowers_it(rates, usage, name, more):
    cost, terms = rates.cost(usage), terms_of(usage)
    each = (rates.input, rates.input_context, rates.output, rates.output_context, rates.cached, rates.request)
    scales = (10**6, 10**9, 10**6, 10**9, 10**6, 10**6)
    exact = sum(Fraction(n * rate, scale) for n, rate, scale in zip(terms, each, scales, strict=True))
    assert 0 <= cost - exact < 1
    assert rates.cost({**usage, name: usage.get(name, 0) + more}) >= cost
    assert rates.cost(dict(usage)) == cost
    assert rates.cost({}) == 0


@given(RATES, st.integers(10_000, 30_000), st.integers(64, 300_000), st.booleans())
def test_a_proposed_card_is_monotone_and_reads_the_cache_for_no_more(rates, margin, context, with_cached):
    proposal = proposed(rates, margin, context, with_cached=with_cached)
    tiers = [proposal.tiers[start] for start in sorted(proposal.tiers)]
    assert min(proposal.tiers) == 0
    for tier in tiers:
        assert tier.get("cache_read", tier["input"]) <= tier["input"]
        assert ("cache_read" in tier) == with_cached
    for shorter, longer in itertools.pairwise(tiers):
        assert all(longer[name] >= rate for name, rate in shorter.items() if name != "cache_read")
    rows = [(start, name, rate) for start, tier in proposal.tiers.items() for name, rate in tier.items()]
    CardPrices.build(uuid7(), proposal.request_fee, rows)


def test_a_card_at_the_cost_takes_in_what_a_mix_costs():
    rates = CostRates.of(TRUE, HOUR)
    proposal = proposed(rates, 10_000, 8192, with_cached=True)
    rows = [(start, name, rate) for start, tier in proposal.tiers.items() for name, rate in tier.items()]
    card = CardPrices.build(uuid7(), proposal.request_fee, rows)
    assert len(card.tiers) > 1, "the context costs"
    draw = Random(3)
    usages = [
        {"input": round(16 * 400 ** draw.random()), "cache_read": draw.randrange(400), "output": draw.randrange(400)}
        for _ in range(500)
    ]
    cost = sum(map(rates.cost, usages))
    assert sum(rating.charge(one, card, 10_000) for one in usages) == pytest.approx(cost, rel=0.1)


def card_of(proposal):
    rows = [(start, name, rate) for start, tier in proposal.tiers.items() for name, rate in tier.items()]
    return CardPrices.build(uuid7(), proposal.request_fee, rows)


@pytest.mark.parametrize(("factor", "is_same"), [(0.91, True), (1.09, True), (1.0, True), (1.12, False), (0.88, False)])
def test_measuring_again_proposes_other_prices_only_beyond_a_tenth(factor, is_same):
    first = proposed(CostRates.of(TRUE, HOUR), 12_500, 8192, with_cached=True)
    again = CostRates.of([one * factor for one in TRUE], HOUR)
    second = proposed(again, 12_500, 8192, with_cached=True, current=card_of(first))
    assert (second == first) == is_same


def test_idle_hours_and_the_margin_are_parts_of_a_price():
    seconds = (1e-3, 0, 0, 0, 0, 0)
    whole = CostRates.of(seconds, DevicePrice(3_600 * MICRO, utilisation_bp=10_000))
    half = CostRates.of(seconds, DevicePrice(3_600 * MICRO, utilisation_bp=5_000))
    assert whole.cost({"input": 1000}) == MICRO, "a second of an hour"
    assert half.cost({"input": 1000}) == 2 * MICRO
    assert whole.prices(0, 15_000, with_cached=False)["input"] == 1500 * MICRO
    for wrong in ({"utilisation_bp": 0}, {"utilisation_bp": 10_001}, {"margin_bp": 9_999}, {"hour": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
            DevicePrice(**{"hour": 1, **wrong})


def test_terms_count_the_whole_prompt_as_context():
    assert terms_of({"input": 10, "cache_read": 90, "output": 4, "reasoning": 6}) == (10, 1000, 10, 1050, 90, 1)
    assert terms_of({"cache_write_short": 10}) == (10, 100, 0, 0, 0, 1)
    assert terms_of({}) == (0,) * len(costs.TERMS)
