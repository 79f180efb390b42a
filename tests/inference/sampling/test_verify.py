"""Drafts change when tokens are chosen, never which."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from inference.core.step import Row, RowResult
from inference.sampling.sampler import NON_FINITE, Sampler
from inference.sampling.verify import choose
from inference.types import SamplingParams
from tests.inference.sampling.reference import Known
from tests.inference.sampling.test_combined import ENDS, VOCABULARY, random_params


def distribution(tokens: list[int]) -> torch.Tensor:
    """A model: its logits depend on all tokens before."""
    seed = 17
    for token in tokens:
        seed = (seed * 1_000_003 + token) % (1 << 61)
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def row(known: Known, slot: int, drafts: list[int]) -> Row:
    return Row(
        slot, "r", (known.tokens[-1], *drafts), len(known.tokens) - 1, (), True, len(known.output), known.params,
        known.seed, history=known.tokens, banned=ENDS if known.params.min_tokens else (), drafts=len(drafts),
    )  # fmt: skip


def generate(known: Known, count: int) -> tuple[list[int], list[object]]:
    """The sequence alone and without drafts."""
    sampler = Sampler(torch.device("cpu"))
    known = replace(known, prompt=list(known.prompt))
    logprobs: list[object] = []
    for _ in range(count):
        (chosen,) = choose(sampler, distribution(known.tokens)[None], [row(known, 0, [])])
        assert isinstance(chosen, RowResult)
        known.tokens += chosen.tokens
        logprobs += chosen.logprobs
    return known.output, logprobs


@pytest.mark.parametrize("seed", range(15))
def test_output_with_drafts_is_the_output_without(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        Known(random_params(chance), chance.getrandbits(64), [chance.randrange(VOCABULARY) for _ in range(5)])
        for _ in range(4)
    ]
    wanted = [generate(known, 24) for known in rows]
    told: list[list[object]] = [[] for _ in rows]
    sampler = Sampler(torch.device("cpu"))
    steps = 0
    while any(len(known.output) < 18 for known in rows):
        steps += 1
        planned, lines = [], []
        for slot, known in enumerate(rows):
            # Some drafts are right, some wrong, some right but behind a wrong one.
            right = wanted[slot][0][len(known.output) :]
            count = min(chance.randrange(5), len(right))
            drafts = [t if chance.random() < 0.8 else chance.randrange(VOCABULARY) for t in right[:count]]
            planned.append(row(known, slot, drafts))
            lines += [distribution([*known.tokens, *drafts[:i]]) for i in range(count + 1)]
        for slot, chosen in enumerate(choose(sampler, torch.stack(lines), planned)):
            assert isinstance(chosen, RowResult)
            rows[slot].tokens += chosen.tokens
            told[slot] += chosen.logprobs
    for known, logprobs, (output, expected) in zip(rows, told, wanted, strict=True):
        shorter = min(len(known.output), len(output))
        assert known.output[:shorter] == output[:shorter]
        assert [p.chosen.token for p in logprobs[:shorter]] == [p.chosen.token for p in expected[: len(logprobs)]][
            :shorter
        ]
    assert steps < 18


def test_a_failure_behind_a_draft_ends_the_tokens_and_one_in_the_first_place_fails_the_row() -> None:
    known = Known(SamplingParams(temperature=0.0), 0, [1])
    logits = torch.zeros(3, VOCABULARY)
    logits[0, 7] = 1.0
    logits[1, 2] = float("nan")
    sampler = Sampler(torch.device("cpu"))
    assert choose(sampler, logits, [row(known, 0, [7, 8])]) == [RowResult((7,))]
    assert choose(sampler, logits.flip(0)[1:], [row(known, 0, [7])]) == [NON_FINITE]


def test_nothing_is_sampled_behind_a_mistake() -> None:
    known = Known(SamplingParams(temperature=0.0), 0, [1])
    logits = torch.zeros(4, VOCABULARY)
    logits[0, 7] = logits[1, 9] = 1.0
    logits[2:] = float("nan")
    assert choose(Sampler(torch.device("cpu")), logits, [row(known, 0, [7, 8, 9])]) == [RowResult((7, 9))]
