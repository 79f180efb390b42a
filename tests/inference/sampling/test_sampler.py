"""Sampling: exact distributions, filters by definition, and results that depend on nothing but their own row."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from inference.core.step import Row, RowFailure
from inference.sampling import torch_passes
from inference.sampling.passes import Passes
from inference.sampling.rng import exponentials, mix
from inference.sampling.sampler import Sampler
from inference.types import SamplingParams
from tests.inference.sampling.reference import noise_key


def row(number: int = 0, *, seed: int = 1, index: int = 0, **params: Any) -> Row:
    return Row(number, str(number), (1,), 0, (1,), True, index, SamplingParams(**params), seed)


def sample(logits: torch.Tensor, rows: list[Row]) -> list[int | RowFailure]:
    """What a new sampler chooses; each row has a slot of its own."""
    rows = [row._replace(slot=slot) for slot, row in enumerate(rows)]
    sampled = Sampler(torch.device("cpu")).sample(logits.clone(), rows)
    return [sampled.failures.get(number, token) for number, token in enumerate(sampled.tokens.tolist())]


def allowed(logits: list[float], *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> dict[int, float]:
    """The distribution by the definitions, one step after the other, in float64."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if top_k:
        order = order[:top_k]
    weights = [math.exp((logits[i] - logits[order[0]]) / temperature) for i in order]
    total = sum(weights)
    probabilities = [weight / total for weight in weights]
    kept, before = [], 0.0
    for i, probability in zip(order, probabilities, strict=True):
        if (before < top_p or not kept) and probability >= min_p * probabilities[0]:
            kept.append((i, probability))
        before += probability
    total = sum(probability for _, probability in kept)
    return {i: probability / total for i, probability in kept}


CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 12},
    {"top_k": 500},
    {"top_p": 0.35},
    {"top_p": 0.8},
    {"top_p": 0.0001},
    {"min_p": 0.3},
    {"min_p": 1.0},
    {"top_k": 6, "top_p": 0.7, "min_p": 0.2, "temperature": 0.8},
    {"top_k": 500, "top_p": 0.6},
]


@pytest.mark.parametrize("candidates", [4, 1024])
@pytest.mark.parametrize("params", CASES, ids=str)
def test_distribution(params: dict[str, float], candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square over 12 tokens; with few candidates the rows whose filters reach further are sorted whole."""
    monkeypatch.setattr(torch_passes, "CANDIDATES", candidates)
    chance = random.Random(4)
    logits = [chance.gauss(0, 1.5) for _ in range(12)]
    draws = 6000
    counts = [0] * 12
    for begin in range(0, draws, 500):
        rows = [row(i, seed=99, index=i, **params) for i in range(begin, begin + 500)]
        for token in sample(torch.tensor([logits]).repeat(500, 1), rows):
            counts[token] += 1
    expected = allowed(logits, **params)
    assert {i for i, count in enumerate(counts) if count} <= set(expected)
    squares = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    freedom = len(expected) - 1
    assert squares <= freedom + 4 * math.sqrt(2 * freedom) + 6


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0], [4.0, -1.0, 0.0, 4.0]])
    assert sample(logits, [row(temperature=0.0), row(temperature=0.0, top_k=2, top_p=0.5)]) == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}, {"top_p": 0.9}, {"presence_penalty": 1e-9}], ids=str)
def test_top_k_1_takes_the_first_of_equals_on_every_tier(
    passes: Passes, dtype: torch.dtype, params: dict[str, float]
) -> None:
    logits = torch.randint(0, 3, (8, 5000)).to(dtype)
    logits[7] = 2.0
    rows = [row(slot, seed=slot, top_k=1, **params)._replace(slot=slot, history=[1]) for slot in range(8)]
    tokens = Sampler(torch.device("cpu"), passes).sample(logits.clone(), rows).tokens
    assert tokens.tolist() == [(line == 2.0).nonzero()[0].item() for line in logits]


def test_a_row_does_not_depend_on_its_mates() -> None:
    torch.manual_seed(2)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"top_p": 0.9},
        {"top_p": 0.9999, "temperature": 3.0},
        {"top_k": 40},
        {"top_k": 2000, "top_p": 0.5},
        {"min_p": 0.05},
    ]
    rows = [row(i, seed=i % 5, index=i % 3, **kinds[i % len(kinds)]) for i in range(42)]
    logits = torch.randn(42, 3000) * 3
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(42)]
    assert sample(logits, rows) == alone
    order = list(range(42))
    random.Random(1).shuffle(order)
    assert sample(logits[order], [rows[i] for i in order]) == [alone[i] for i in order]


def test_seed_position_and_token_decide_the_noise() -> None:
    logits = torch.zeros(1, 5000)
    draw = lambda seed, index: sample(logits, [row(seed=seed, index=index)])[0]
    assert draw(3, 4) == draw(3, 4)
    assert len({draw(seed, index) for seed in (0, 1, 2**63, 2**64 - 1) for index in range(25)}) > 95
    # A token keeps its noise when others are filtered out: the winner among all wins among the few it is with.
    winner = sample(torch.tensor([[1.0, 0.9, 0.8, -1.0, -2.0]]), [row(seed=8)])[0]
    assert winner < 3
    assert sample(torch.tensor([[1.0, 0.9, 0.8, -1.0, -2.0]]), [row(seed=8, top_k=3)])[0] == winner


def test_rows_without_finite_logits_fail_alone() -> None:
    logits = torch.zeros(6, 8)
    logits[1, 3] = float("nan")
    logits[2, 0] = float("inf")
    logits[3] = float("-inf")
    logits[4, :7] = float("-inf")
    kinds = [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"temperature": 0.0}, {"top_k": 3}, {"temperature": 0.0}]
    tokens = sample(logits, [row(i, **kind) for i, kind in enumerate(kinds)])
    assert [type(token) for token in tokens] == [int, RowFailure, RowFailure, RowFailure, int, int]
    assert tokens[1].code == "non_finite_logits"
    assert tokens[4] == 7


def test_extreme_temperatures_stay_finite() -> None:
    logits = torch.tensor([[-3e38, 3e38, 1.0, 2.0]]).repeat(2, 1)
    assert sample(logits, [row(temperature=1e-30), row(temperature=1e-30, top_p=0.9)]) == [1, 1]
    seen = {sample(torch.tensor([[9.0, -9.0]]), [row(seed=s, temperature=1e30)])[0] for s in range(30)}
    assert seen == {0, 1}


def test_the_hash_is_the_same_in_tensors_and_in_python() -> None:
    key = noise_key(5, 7)
    noise = exponentials(torch.tensor([[key]]), torch.tensor([[0, 1, 49_151]]))
    for token, value in zip((0, 1, 49_151), noise[0].tolist(), strict=True):
        word = mix((key + (token + 1) * 0x9E3779B97F4A7C15) & ((1 << 64) - 1))
        assert value == pytest.approx(-math.log1p(-min((word >> 1 | 1) * 2.0**-63, 1 - 2.0**-24)), rel=1e-4)


def test_the_noise_is_exponential() -> None:
    noise = exponentials(torch.tensor([[noise_key(seed, 0)] for seed in range(40)]), torch.arange(5000)[None])
    assert noise.min() > 0
    for bound in (0.001, 0.1, 0.7, 2.0, 6.0):
        share = (noise <= bound).double().mean().item()
        true = -math.expm1(-bound)
        assert abs(share - true) < 5 * math.sqrt(true * (1 - true) / noise.numel())
    # neighbours in seed, position and token are unrelated
    for a, b in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        assert abs(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]) < 0.01


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.01}, {"top_k": 2**70, "top_p": 0.9}])
@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 3e38, 1e39, 1.7e308])
def test_no_temperature_chooses_a_token_that_is_ruled_out(
    passes: Passes, temperature: float, filters: dict[str, float]
) -> None:
    logits = torch.linspace(-5, 5, 60)[None]
    for seed in range(10):
        one = row(seed=seed, temperature=temperature, allowed_token_ids=(3, 7), **filters)
        sampled = Sampler(torch.device("cpu"), passes).sample(logits.clone(), [one])
        assert not sampled.failures
        assert int(sampled.tokens[0]) in {3, 7}
