"""Linear layers: what a model's layers call, and torch's own.

With oneDNN's packed weight layout there is no copy of the weight on each call, which `torch.nn.functional.linear` makes
for more than one row: two to eight rows then cost little more than one.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch


class Linear(Protocol):
    """A linear layer: x [T, in] → x · weightᵀ + bias + residual [T, out]."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...


@cache
def packs(dtype: torch.dtype) -> bool:
    """Whether this torch and processor can pack weights of `dtype`; tried once, on a small one."""
    weight, row = torch.ones(16, 16, dtype=dtype), torch.ones(1, 16, dtype=dtype)
    try:
        with torch.inference_mode():
            return bool(torch.equal(PackedLinear(weight)(row, row), torch.full_like(row, 17)))
    except (RuntimeError, AttributeError):  # this processor or this torch has no such operator
        return False


class TorchLinear:
    """A `Linear` by torch's plainest operator."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._weight = weight

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        result = torch.nn.functional.linear(x, self._weight, self._bias)
        return result if residual is None else residual + result


class PackedLinear:
    """A `Linear` with a packed copy of its weight, which adds the residual before it rounds."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())  # noqa: SLF001 - torch's only name for it

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        operator = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - the same
        if residual is None:
            result: torch.Tensor = operator.default(x, self._weight, self._bias, "none", [], "")
        else:
            result = operator.binary(x, residual, self._weight, self._bias, "add")
        return result
