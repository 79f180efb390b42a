"""Linear layers to which the tokens of a step add what their adapters give: low-rank products, adapter by adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from inference.execution.adapters import Adapters
from inference.execution.linear import Linear, Pair

Span = tuple[str, int, int]
"""An adapter's key, and the first and the end of the neighbouring tokens of a step that have it."""


class TorchPair:
    """A `Pair` by torch's operators, of `down` [rank, inputs] and `up` [outputs, rank]."""

    def __init__(self, down: torch.Tensor, up: torch.Tensor) -> None:
        self._down, self._up = down.t(), up.t()

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        out.addmm_(x @ self._down, self._up)


class StepPairs:
    """Which tokens of the step that runs have which adapters: none between steps."""

    def __init__(self) -> None:
        self.spans: list[tuple[Mapping[str, Pair], int, int]] = []

    @contextmanager
    def of(self, adapters: Adapters, spans: Sequence[Span]) -> Iterator[tuple[tuple[int, int, int], ...]]:
        """Let the tokens of `spans` have their adapters; give what tells these from any others, for `repeated`."""
        found = [(adapters.get(key), begin, end) for key, begin, end in spans]
        # One that was checked and isn't there any more belongs to a request that has ended, whose row is discarded.
        known = [(adapter, begin, end) for adapter, begin, end in found if adapter is not None]
        self.spans = [(adapter.pairs, begin, end) for adapter, begin, end in known]
        try:
            yield tuple((adapter.serial, begin, end) for adapter, begin, end in known)
        finally:
            self.spans = []


class AdaptedLinear:
    """The linear layer `name` of a model; the tokens of a step are changed by the adapters that they have.

    Those without one have the bits that `base` gives them.
    """

    __slots__ = ("_base", "_name", "_step")

    def __init__(self, base: Linear, name: str, step: StepPairs) -> None:
        self._base = base
        self._name = name
        self._step = step

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = self._base(x, residual)
        for pairs, begin, end in self._step.spans:
            pair = pairs.get(self._name)
            if pair is not None:
                pair(x.narrow(0, begin, end - begin), out.narrow(0, begin, end - begin))
        return out
