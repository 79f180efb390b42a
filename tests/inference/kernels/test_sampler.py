"""The passes over logits in C against torch, with the noise of `inference.sampling.rng`."""

from __future__ import annotations

import random

import pytest
import torch

from inference.kernels.library import Library
from inference.kernels.sampler import (
    argmax,
    count_above,
    filtered_argmax,
    gumbel_argmax,
    log_sum_exp,
    top_candidates,
)
from inference.sampling.rng import exponentials
from inference.types import SamplingParams
from tests.inference.sampling.reference import noise_key, scores

SHAPES = [(1, 7), (3, 512), (5, 4999)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_argmax(library: Library, dtype: torch.dtype, rows: int, width: int) -> None:
    logits = (torch.randn(rows, width) * 3).to(dtype)
    peaks, tokens = argmax(library, logits)
    assert torch.equal(peaks, logits.float().max(1).values)
    assert tokens.tolist() == [int((row == row.max()).nonzero()[0]) for row in logits]


def test_argmax_sees_what_is_not_finite(library: Library) -> None:
    logits = torch.randn(4, 2000)
    logits[0, 1500] = float("nan")
    logits[1] = float("-inf")
    logits[2, 3] = float("inf")
    peaks, tokens = argmax(library, logits)
    assert peaks.isnan().tolist() == [True, False, False, False]
    assert peaks[1:3].tolist() == [float("-inf"), float("inf")]
    assert tokens[2:].tolist() == [3, int(logits[3].argmax())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_the_race_is_the_one_of_all_tokens(library: Library, dtype: torch.dtype, temperature: float) -> None:
    """Tokens that the bound leaves out could not have won."""
    rows, width = 64, 3001
    logits = (torch.randn(rows, width) * 2).to(dtype)
    logits[:8] = 0
    keys = torch.tensor([noise_key(seed, seed % 5) for seed in range(rows)])
    inverse = torch.full((rows,), 1 / temperature)
    peaks = logits.float().max(1).values
    got = gumbel_argmax(library, logits, peaks, inverse, keys)
    shifted = logits.float() - logits.float().max(1, keepdim=True).values
    race = shifted * inverse[:, None] - exponentials(keys[:, None], torch.arange(width)[None]).log()
    chosen = race.gather(1, got[:, None])[:, 0]
    torch.testing.assert_close(chosen, race.max(1).values, atol=1e-5, rtol=1e-5)
    for row in range(0, rows, 9):
        one = slice(row, row + 1)
        alone = gumbel_argmax(library, logits[one], peaks[one], inverse[one], keys[one])
        assert alone[0] == got[row]


def test_draws_follow_the_distribution(library: Library) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, float("-inf")]]).expand(8000, 5).contiguous()
    keys = torch.tensor([noise_key(seed, 0) for seed in range(8000)])
    tokens = gumbel_argmax(library, logits, torch.full((8000,), 2.0), torch.ones(8000), keys)
    shares = torch.bincount(tokens, minlength=5) / 8000
    torch.testing.assert_close(shares, torch.softmax(logits[0], 0), atol=0.02, rtol=0)
    assert shares[4] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_sums_and_candidates(library: Library, dtype: torch.dtype, rows: int, width: int) -> None:
    logits = (torch.randn(rows, width) * 3).to(dtype)
    inverse = torch.rand(rows) + 0.5
    peaks = logits.float().max(1).values
    expected = torch.logsumexp((logits.double() - peaks[:, None]) * inverse[:, None], 1)
    torch.testing.assert_close(log_sum_exp(library, logits, peaks, inverse).double(), expected, atol=1e-5, rtol=1e-5)
    ordered, order = torch.sort(logits.float(), dim=1, descending=True, stable=True)
    for k in (1, 5, min(width, 1024), width):
        values, tokens = top_candidates(library, logits, k)
        assert torch.equal(values, ordered[:, :k])
        assert torch.equal(tokens, order[:, :k])
    for bounds in (peaks, logits[:, 3].float().contiguous(), torch.full((rows,), -0.5)):
        assert torch.equal(count_above(library, logits, bounds), (logits.float() > bounds[:, None]).sum(1))
    with pytest.raises(ValueError, match="from 1 to"):
        top_candidates(library, logits, width + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["peaked", "flat", "ties", "rising", "falling", "masked"])
def test_filters_are_what_they_say(library: Library, dtype: torch.dtype, shape: str) -> None:
    """Against the slow sampler, over more tokens than one piece holds, with nuclei from one token to nearly all."""
    chance = random.Random(shape)
    width = 3001
    params = [
        SamplingParams(
            temperature=chance.choice([0.3, 1.0, 4.0]),
            top_k=chance.choice([0, 0, 1, 5, 40, 600, 3000, 9000]),
            top_p=chance.choice([1.0, 0.01, 0.5, 0.9, 0.999]),
            min_p=chance.choice([0.0, 0.0, 0.02, 0.5]),
        )
        for _ in range(24)
    ]
    rows = len(params)
    logits = {
        "peaked": torch.randn(rows, width) * 3,
        "flat": torch.randn(rows, width) * 0.01,
        "ties": torch.randint(-2, 3, (rows, width)).float(),
        "rising": torch.linspace(-9, 9, width).expand(rows, width),
        "falling": torch.linspace(9, -9, width).expand(rows, width),
        "masked": torch.where(torch.rand(rows, width) < 0.99, float("-inf"), torch.randn(rows, width)),
    }[shape]
    logits = logits.contiguous().to(dtype)
    seeds = [chance.getrandbits(64) for _ in params]
    peaks = logits.float().max(1).values
    given = {
        "top_k": torch.tensor([p.top_k for p in params]),
        "top_p": torch.tensor([p.top_p for p in params]),
        "min_p": torch.tensor([p.min_p for p in params]),
    }
    inverse = torch.tensor([1 / p.temperature for p in params])
    keys = torch.tensor([noise_key(seed, 3) for seed in seeds])
    got = filtered_argmax(library, logits, peaks, inverse, keys, **given).tolist()
    clear = 0
    for row, (token, param, seed) in enumerate(zip(got, params, seeds, strict=True)):
        candidates, _ = scores(logits[row].tolist(), param, seed, 3)
        order = sorted(candidates, key=candidates.__getitem__, reverse=True)
        # At the edge of a nucleus the last bit decides; a token past the edge must be an improbable one.
        wanted = [i for i in order if candidates[i] >= candidates[order[0]] - 1e-3]
        clear += token in wanted
        one = slice(row, row + 1)
        alone = filtered_argmax(
            library, logits[one], peaks[one], inverse[one], keys[one], **{name: v[one] for name, v in given.items()}
        )
        assert alone[0] == token
    assert clear >= rows - 1


def test_candidates_of_a_rising_row(library: Library) -> None:
    """The worst order: every logit is larger than all before."""
    logits = torch.arange(5000.0)[None]
    assert top_candidates(library, logits, 40)[1][0].tolist() == list(range(4999, 4959, -1))
