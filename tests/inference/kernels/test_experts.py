"""Routing to experts, and the sum of what they gave, against torch's; each token's bits in any batch."""

from __future__ import annotations

import pytest
import torch

from inference.kernels.experts import combine, route
from inference.kernels.library import Library

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("dtype", "experts", "chosen"),
    [(torch.float32, 4, 2), (torch.float32, 60, 4), (torch.float32, 1024, 3), (BF16, 16, 16), (BF16, 128, 8)],
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_route(library: Library, dtype: torch.dtype, experts: int, chosen: int, is_shared: bool) -> None:
    logits = (torch.randn(33, experts + is_shared) * 3).to(dtype)
    if dtype is BF16:  # no two alike, since which of those is chosen is open
        logits[:, :experts] = torch.stack([torch.randperm(experts) for _ in range(33)]).to(dtype) / 4
    whole = torch.softmax(logits[:, :experts].float(), -1)
    best, numbers = whole.topk(chosen, -1)
    for is_normalised in (False, True):
        got_numbers, weights = route(library, logits, chosen, is_normalised=is_normalised, is_shared=is_shared)
        expected = best / best.sum(-1, keepdim=True) if is_normalised else best
        assert torch.equal(got_numbers.long(), numbers)
        torch.testing.assert_close(weights[:, :chosen], expected, atol=1e-6, rtol=1e-5)
        if is_shared:
            torch.testing.assert_close(weights[:, chosen], torch.sigmoid(logits[:, experts].float()))
        for token in (0, 7, 32):
            one = route(library, logits[token : token + 1], chosen, is_normalised=is_normalised, is_shared=is_shared)
            assert torch.equal(one[0][0], got_numbers[token])
            assert torch.equal(one[1][0], weights[token])


def test_equal_logits_go_to_the_lower_numbers(library: Library) -> None:
    numbers, weights = route(library, torch.zeros(2, 8), 3, is_normalised=True, is_shared=False)
    assert numbers.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_token_that_is_not_finite_stays_alone(library: Library, value: float) -> None:
    logits = torch.randn(3, 9)
    expected = route(library, logits, 4, is_normalised=True, is_shared=True)
    logits[1] = value
    numbers, weights = route(library, logits, 4, is_normalised=True, is_shared=True)
    assert sorted(set(numbers[1].tolist())) == sorted(numbers[1].tolist())
    assert 0 <= int(numbers.min()) <= int(numbers.max()) < 8
    for token in (0, 2):
        assert torch.equal(numbers[token], expected[0][token])
        assert torch.equal(weights[token], expected[1][token])
    assert torch.isnan(weights[1, :4]).all()


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("width", [64, 100, 1024])
def test_combine(library: Library, dtype: torch.dtype, width: int) -> None:
    rows, residual = torch.randn(40, width).to(dtype), torch.randn(13, width).to(dtype)
    places, weights = torch.randint(40, (13, 3), dtype=torch.int32), torch.rand(13, 3)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.02, "rtol": 0.01}
    plain = (rows[places.long()].float() * weights[..., None]).sum(1)
    torch.testing.assert_close(combine(library, rows, places, weights), plain.to(dtype), **close)
    got = combine(library, rows, places, weights, residual)
    torch.testing.assert_close(got, (plain + residual.float()).to(dtype), **close)
    for token in range(13):
        only = slice(token, token + 1)
        assert torch.equal(combine(library, rows, places[only], weights[only], residual[only])[0], got[token])


def test_what_does_not_fit_is_refused(library: Library) -> None:
    for chosen, experts in ((5, 4), (0, 4), (2, 1025)):
        with pytest.raises(ValueError, match="can't be chosen"):
            route(library, torch.zeros(1, experts), chosen, is_normalised=True, is_shared=False)
