"""Linear layers: their weights, what a model's layers call, and torch's own.

With oneDNN's packed weight layout there is no copy of the weight on each call, which `torch.nn.functional.linear` makes
for more than one row: two to eight rows then cost little more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class EightBits:
    """A weight as it is stored: `numbers` int8 or float8_e4m3fn [outputs, inputs] · `scales` float32 [outputs].

    The layer's rows are of `dtype`.
    """

    numbers: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, outputs: torch.Tensor) -> EightBits:
        numbers = self.numbers.view(torch.uint8)[outputs]  # no device indexes float8
        return EightBits(numbers.view(self.numbers.dtype), self.scales[outputs], self.dtype)

    def to(self, device: torch.device) -> EightBits:
        return EightBits(self.numbers.to(device), self.scales.to(device), self.dtype)


Weight = torch.Tensor | EightBits


def wide(weight: Weight) -> torch.Tensor:
    """Return the weight in the dtype of its layer's rows."""
    if isinstance(weight, torch.Tensor):
        return weight
    return (weight.numbers.float() * weight.scales[:, None]).to(weight.dtype)


def joined(weights: Sequence[Weight]) -> Weight:
    """Return the outputs of all weights, in eight bits where all of them are in the same."""
    stored = [weight for weight in weights if isinstance(weight, EightBits)]
    if len(stored) == len(weights) and len({weight.numbers.dtype for weight in stored}) == 1:
        numbers = torch.cat([weight.numbers for weight in stored])
        return EightBits(numbers, torch.cat([weight.scales for weight in stored]), stored[0].dtype)
    return torch.cat([wide(weight) for weight in weights])


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
