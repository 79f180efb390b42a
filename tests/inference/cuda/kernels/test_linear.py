"""The kernels of linear layers against torch: 8-bit and 4-bit weights, few rows and many."""

from __future__ import annotations

import pytest
import torch

from inference.cuda.kernels.int4 import GROUP, ZERO, int4_matmul, quantise_int4, unpack_int4
from inference.cuda.kernels.matmul import scaled_matmul
from inference.cuda.kernels.matvec import matvec
from inference.cuda.kernels.quantise import quantise

pytestmark = pytest.mark.slow

FLOAT8 = torch.float8_e4m3fn
SHAPES = [(1, 48, 64), (3, 100, 512), (17, 33, 700), (40, 130, 1024)]


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    spread = float(expected.abs().max())
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance * spread, rtol=tolerance)


def eight_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.int8:
        return torch.randint(-127, 128, shape, dtype=torch.int8)
    return torch.randn(shape).to(FLOAT8)


@pytest.mark.parametrize("width", [64, 700, 4096])
def test_quantise_rounds_each_row_by_its_own_scale(width) -> None:
    x = torch.randn(3, width) * torch.tensor([[1.0], [100.0], [0.001]])
    numbers, scales = quantise(x, torch.int8)
    assert numbers.abs().amax(1).tolist() == [127, 127, 127]
    assert ((numbers.float() * scales[:, None] - x).abs() <= 0.5001 * scales[:, None]).all()
    alone, scale = quantise(x[1:2], torch.int8)
    assert torch.equal(alone[0], numbers[1])
    assert torch.equal(scale[0], scales[1])
    assert torch.equal(quantise(torch.zeros(1, width), torch.int8)[0], torch.zeros(1, width, dtype=torch.int8))
    _, scales = quantise(x, FLOAT8)
    torch.testing.assert_close(scales, x.abs().amax(1) / 448)


@pytest.mark.parametrize("dtype", [torch.int8, FLOAT8])
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (200, 257, 192)])
def test_scaled_matmul(m, n, k, dtype) -> None:
    x, weight = eight_bits(dtype, m, k), eight_bits(dtype, n, k)
    x_scales, weight_scales, bias = torch.rand(m), torch.rand(n), torch.randn(n)
    expected = x.float() @ weight.float().T * weight_scales * x_scales[:, None]
    close(scaled_matmul(x, weight, x_scales, weight_scales, torch.float32, bias), expected + bias)
    residual = torch.randn(m, n)
    found = scaled_matmul(x, weight, x_scales, weight_scales, torch.float32, residual=residual)
    close(found, expected + residual)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.int8, torch.int8),
        (FLOAT8, FLOAT8),
        (torch.float16, torch.int8),
        (torch.float16, FLOAT8),
    ],
    ids=str,
)
def test_matvec(m, n, k, x_dtype, weight_dtype) -> None:
    x = eight_bits(x_dtype, m, k) if x_dtype.itemsize == 1 else torch.randn(m, k).to(x_dtype)
    weight = eight_bits(weight_dtype, n, k) if weight_dtype.itemsize == 1 else torch.randn(n, k).to(weight_dtype)
    bias = torch.randn(n)
    scales = {"weight_scales": torch.rand(n), "x_scales": torch.rand(m)} if weight_dtype.itemsize == 1 else {}
    expected = x.float() @ weight.float().T
    if scales:
        expected = expected * scales["weight_scales"] * scales["x_scales"][:, None]
    residual = torch.randn(m, n)
    found = matvec(x, weight, torch.float32, bias=bias, residual=residual, **scales)
    close(found, expected + bias + residual)


def test_eight_bit_integers_give_the_same_bits_for_few_rows_and_many() -> None:
    """int32 sums have no order: W8A8 is exact whatever the batch."""
    x, weight = eight_bits(torch.int8, 70, 300), eight_bits(torch.int8, 50, 300)
    scales = torch.rand(70), torch.rand(50)
    many = scaled_matmul(x, weight, *scales, torch.float32)
    few = matvec(x[:3], weight, torch.float32, x_scales=scales[0][:3], weight_scales=scales[1])
    assert torch.equal(few, many[:3])


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 48, 256), (5, 40, 512), (9, 20, 384), (17, 70, 1024), (33, 17, 128), (70, 17, 256)]
)
def test_int4(m, n, k) -> None:
    torch.manual_seed(m)
    dense = torch.randn(n, k)
    weight = quantise_int4(dense)
    restored = unpack_int4(weight, torch.float32)
    scales = (weight.scales & ~ZERO).view(torch.float32).T
    assert ((restored - dense).abs() <= scales.repeat_interleave(GROUP, 1) * 1.001).all()
    x, bias = torch.randn(m, k), torch.randn(n)
    close(int4_matmul(x, weight, bias), x @ restored.T + bias)
    residual = torch.randn(m, n)
    close(int4_matmul(x, weight, residual=residual), x @ restored.T + residual)
    close(int4_matmul(x.half(), weight), x.half().float() @ restored.T, 2e-3)
    assert not weight.done.any(), "the next product would begin with parts of this one"


def test_int4_of_many_tiles_is_not_divided(monkeypatch) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(3, 1024), quantise_int4(torch.randn(40, 1024))
    divided = int4_matmul(x, weight)
    monkeypatch.setattr("inference.cuda.kernels.int4.FEW_TILES", 1)
    whole = int4_matmul(x, weight)
    close(whole, divided)
    assert not torch.equal(whole, divided), "sums of parts are rounded otherwise"


def test_int4_needs_whole_groups() -> None:
    with pytest.raises(ValueError, match="whole number of groups of 128"):
        quantise_int4(torch.randn(4, 200))
