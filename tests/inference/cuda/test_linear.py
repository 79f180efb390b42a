"""Linear layers of the Triton tier: which products are left to cuBLAS, and that both give the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.cuda.kernels.matvec import MAX_ROWS
from inference.cuda.kernels.quantise import in_eight_bits
from inference.cuda.operators import EightBitLinear

FLOAT8 = torch.float8_e4m3fn


class CuBlas:
    """Stands in for `torch._scaled_mm`, and refuses what that refuses on a GPU."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, *, scale_a: torch.Tensor, scale_b: torch.Tensor, **rest: Any
    ) -> torch.Tensor:
        if any(size % 16 for size in weight.shape):
            raise ValueError(f"Expected both dimensions of mat2 to be divisible by 16 but got {weight.shape}")
        self.calls += 1
        assert rest["use_fast_accum"] is False, "few rows are summed in float32"
        return (x.float() @ weight.float() * scale_a * scale_b).to(rest["out_dtype"])


@pytest.mark.parametrize(("outputs", "inputs", "calls"), [(64, 48, 1), (67, 48, 0), (64, 40, 0)])
def test_float8_weights_of_any_size_are_multiplied_by_many_rows(
    monkeypatch: pytest.MonkeyPatch, outputs: int, inputs: int, calls: int
) -> None:
    cublas = CuBlas()
    monkeypatch.setattr(torch, "_scaled_mm", cublas)
    torch.manual_seed(0)
    weight, x = torch.randn(outputs, inputs), torch.randn(MAX_ROWS + 1, inputs, dtype=torch.bfloat16)
    linear = EightBitLinear(*in_eight_bits(weight, FLOAT8), None, has_rowwise=True)
    expected = x.float() @ weight.T
    assert (linear(x).float() - expected).abs().max() < 0.1 * expected.abs().max()
    assert cublas.calls == calls
