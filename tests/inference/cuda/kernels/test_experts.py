"""The kernels of mixtures of experts against torch: routing, arrangement, grouped products, sums."""

from __future__ import annotations

import pytest
import torch

from inference.cuda.kernels.experts import SMALL, arrange, combine, grouped_matmul, route
from inference.cuda.kernels.quantise import in_eight_bits, quantise
from inference.execution import experts as plain

pytestmark = pytest.mark.slow

FLOAT8 = torch.float8_e4m3fn
EVEN = [[0, 1], [2, 3], [1, 0], [3, 2], [0, 3]]
ONE = [[2, 4]] * 21  # every token to the same experts, none to others


@pytest.mark.parametrize(("experts", "chosen"), [(4, 2), (60, 4), (128, 8)])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_normalised", [False, True])
def test_route(experts, chosen, is_shared, is_normalised) -> None:
    logits = torch.randn(9, experts + is_shared) * 3
    numbers, weights = route(logits, chosen, is_normalised=is_normalised, is_shared=is_shared)
    expected = plain.route(logits, chosen, is_normalised=is_normalised, is_shared=is_shared)
    assert torch.equal(numbers, expected[0])
    torch.testing.assert_close(weights, expected[1], atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_of_what_is_not_finite_are_still_experts(value) -> None:
    logits = torch.randn(3, 6)
    logits[1] = value
    numbers, weights = route(logits, 3, is_normalised=True, is_shared=False)
    assert numbers[1].tolist() == [0, 1, 2]
    assert torch.isnan(weights[1]).all()
    assert torch.isfinite(weights[[0, 2]]).all()


@pytest.mark.parametrize(
    ("numbers", "experts"), [(EVEN, 4), (ONE, 5), ([[6]], 7), (torch.randint(40, (SMALL // 4 + 3, 4)).tolist(), 40)]
)
def test_arrangement(numbers, experts) -> None:
    pairs = torch.tensor(numbers, dtype=torch.int32)
    arrangement = arrange(pairs, experts)
    flat = pairs.view(-1)
    assert torch.equal(arrangement.order.long(), torch.argsort(flat, stable=True))
    assert torch.equal(arrangement.order[arrangement.places.view(-1).long()].long(), torch.arange(len(flat)))
    counts = torch.bincount(flat, minlength=experts)
    assert arrangement.begins.tolist() == [0, *counts.cumsum(0).tolist()]
    tiles = (counts + arrangement.block - 1) // arrangement.block
    assert arrangement.tiles.tolist() == [0, *tiles.cumsum(0).tolist()]
    assert int(tiles.sum()) <= arrangement.most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, FLOAT8])
@pytest.mark.parametrize(("numbers", "experts"), [(EVEN, 4), (ONE, 5), ([[3]], 7)])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (100, 70)])
def test_grouped_matmul(numbers, experts, dtype, n, k) -> None:
    pairs = torch.tensor(numbers, dtype=torch.int32)
    chosen = pairs.shape[1]
    x, weight = torch.randn(len(pairs), k), torch.randn(experts, n, k)
    scales = {}
    if dtype.itemsize == 1:
        x, scales["x_scales"] = quantise(x, dtype)
        weight, scales["weight_scales"] = in_eight_bits(weight, dtype)
    else:
        x, weight = x.to(dtype), weight.to(dtype)
    arrangement = arrange(pairs, experts)
    got = grouped_matmul(x, weight, arrangement, torch.float32, chosen=chosen, **scales)
    again = grouped_matmul(
        x[arrangement.order.long() // chosen].contiguous(),
        weight,
        arrangement,
        torch.float32,
        **({**scales, "x_scales": scales["x_scales"][arrangement.order.long() // chosen]} if scales else {}),
    )
    assert torch.equal(got, again)
    for token, row in enumerate(numbers):
        for choice, expert in enumerate(row):
            expected = weight[expert].float() @ x[token].float()
            if scales:
                expected *= scales["weight_scales"][expert] * scales["x_scales"][token]
            found = got[arrangement.places[token, choice]]
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("width", [64, 1000, 1500])
def test_combine(width) -> None:
    rows, residual = torch.randn(30, width), torch.randn(5, width)
    places, weights = torch.randint(30, (5, 3), dtype=torch.int32), torch.rand(5, 3)
    for given in (None, residual):
        expected = plain.combine(rows, places, weights, given)
        torch.testing.assert_close(combine(rows, places, weights, given), expected)


def test_nothing_to_do_launches_nothing() -> None:
    numbers, weights = route(torch.empty(0, 4), 2, is_normalised=True, is_shared=False)
    assert combine(torch.empty(0, 8), numbers, weights).shape == (0, 8)
