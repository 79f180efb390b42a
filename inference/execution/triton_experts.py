"""The experts of a layer on CUDA: one kernel for all of them, whatever the routing, so that a graph can hold it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from inference.execution.experts import Activation
from inference.kernels.triton.experts import Arrangement, arrange, grouped_matmul
from inference.kernels.triton.quantise import in_eight_bits, quantise


class GroupedProducts:
    """The networks of all experts (`ExpertProducts`), their weights side by side; in eight bits with a `dtype`."""

    def __init__(
        self, experts: Iterable[tuple[torch.Tensor, torch.Tensor]], activation: Activation, dtype: torch.dtype | None
    ) -> None:
        both, down = zip(*((_held(both, dtype), _held(down, dtype)) for both, down in experts), strict=True)
        self._experts = len(both)
        self._activation = activation
        self._gate_up, self._down = _GroupedLinear(both, dtype), _GroupedLinear(down, dtype)

    def __call__(self, x: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        arrangement = arrange(numbers, self._experts)
        joint = self._gate_up(x, arrangement, chosen=numbers.shape[1])
        return self._down(self._activation(joint), arrangement), arrangement.places


Held = tuple[torch.Tensor, torch.Tensor | None]


def _held(weight: torch.Tensor, dtype: torch.dtype | None) -> Held:
    return (weight, None) if dtype is None else in_eight_bits(weight, dtype)


class _GroupedLinear:
    def __init__(self, weights: tuple[Held, ...], dtype: torch.dtype | None) -> None:
        self._weight = torch.stack([weight for weight, _ in weights])
        self._scales = torch.stack([scales for _, scales in weights if scales is not None]) if dtype else None
        self._dtype = dtype

    def __call__(self, x: torch.Tensor, arrangement: Arrangement, *, chosen: int = 0) -> torch.Tensor:
        if self._dtype is None:
            return grouped_matmul(x, self._weight, arrangement, x.dtype, chosen=chosen)
        numbers, scales = quantise(x, self._dtype)
        return grouped_matmul(
            numbers,
            self._weight,
            arrangement,
            x.dtype,
            chosen=chosen,
            x_scales=scales,
            weight_scales=self._scales,
        )
