"""The experts of a layer on CUDA: one kernel for all of them, whatever the routing, so that a graph can hold it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from inference.execution.experts import Activation
from inference.kernels.triton.experts import Arrangement, arrange, grouped_matmul
from inference.kernels.triton.quantise import quantise

Stored = tuple[torch.Tensor, torch.Tensor | None]
"""A weight in a dtype of its own, or in eight bits with its scales."""


class GroupedProducts:
    """The networks of all experts (`ExpertProducts`), their weights side by side."""

    def __init__(self, experts: Iterable[tuple[Stored, Stored]], activation: Activation) -> None:
        """Raise ValueError where the experts are stored in different dtypes."""
        both, down = zip(*experts, strict=True)
        self._experts = len(both)
        self._activation = activation
        self._gate_up, self._down = _GroupedLinear(both), _GroupedLinear(down)

    def __call__(self, x: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        arrangement = arrange(numbers, self._experts)
        joint = self._gate_up(x, arrangement, chosen=numbers.shape[1])
        return self._down(self._activation(joint), arrangement), arrangement.places


class _GroupedLinear:
    def __init__(self, weights: tuple[Stored, ...]) -> None:
        if len(dtypes := {weight.dtype for weight, _ in weights}) > 1:
            raise ValueError(f"the experts of a layer are in {' and '.join(sorted(map(str, dtypes)))}")
        self._weight = torch.stack([weight for weight, _ in weights])
        scales = [scale for _, scale in weights if scale is not None]
        self._scales = torch.stack(scales) if scales else None

    def __call__(self, x: torch.Tensor, arrangement: Arrangement, *, chosen: int = 0) -> torch.Tensor:
        if self._scales is None:
            return grouped_matmul(x, self._weight, arrangement, x.dtype, chosen=chosen)
        numbers, scales = quantise(x, self._weight.dtype)
        return grouped_matmul(
            numbers,
            self._weight,
            arrangement,
            x.dtype,
            chosen=chosen,
            x_scales=scales,
            weight_scales=self._scales,
        )
