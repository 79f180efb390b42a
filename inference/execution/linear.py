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
            return bool(torch.equal(TorchLinear(weight, packed=True)(row), torch.full_like(row, 16)))
    except (RuntimeError, AttributeError):  # this processor or this torch has no such operator
        return False


class TorchLinear:
    """A `Linear` by torch's operators. With `packed` it keeps a packed copy of the weight."""

    __slots__ = ("_bias", "_packed", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, packed: bool) -> None:
        self._bias = bias
        self._packed = packed
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if packed else weight  # noqa: SLF001 - torch's only name for it

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if not self._packed:
            result = torch.nn.functional.linear(x, self._weight, self._bias)
        else:
            result = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # noqa: SLF001 - the same
        return result if residual is None else residual + result
