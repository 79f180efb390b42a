"""Linear layers to which the tokens of a step add what their adapters give: low-rank products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from inference.execution.linear import Linear


class Weights(Protocol):
    """An adapter's pairs as one tier keeps them; `nbytes` is their size."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Part:
    """An adapter's addition to the outputs of a linear layer from `begin` on: (x · downᵀ) · upᵀ.

    `down` is [rank, inputs], `up` [outputs, rank].
    """

    begin: int
    down: torch.Tensor
    up: torch.Tensor


class LowRank(ABC):
    """The adapters' products of one model, by one tier's operators: which tokens of the step that runs have which.

    Between steps none has any. A token's result depends on it and on its adapter alone where the tier is exact.
    """

    captured = 0  # tokens of a step up to which its products can be captured and repeated for other spans

    def __init__(self) -> None:
        self.most_ranks: list[int] = []  # of each linear layer that adapters may change

    @property
    def places(self) -> int:
        """How many linear layers adapters may change."""
        return len(self.most_ranks)

    def adapted(self, base: Linear, most_ranks: int) -> AdaptedLinear:
        """Return `base`, a layer of its own place, to which adapters are added.

        No adapter has more than `most_ranks` ranks of that layer's modules together.
        """
        self.most_ranks.append(most_ranks)
        return AdaptedLinear(base, self.places - 1, self)

    @contextmanager
    def step(self, spans: Sequence[tuple[Any, int, int]], tokens: int) -> Iterator[Hashable]:
        """Let the tokens from the first to the end of each span have the adapter of its weights, in a step of `tokens`.

        Give what tells this step's products from others that can't be repeated in their place, for `repeated`.
        """
        key = self._tell(spans, tokens)
        self.is_told = True
        try:
            yield key
        finally:
            self.is_told = False

    is_told = False

    @abstractmethod
    def pack(self, layers: Mapping[int, Sequence[Part]]) -> Weights:
        """Return the weights of an adapter which changes these layers, by their places."""

    @abstractmethod
    def add(self, place: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to `out` [T, outputs], in place, what this step's adapters give for `x` [T, inputs]."""

    @abstractmethod
    def _tell(self, spans: Sequence[tuple[Any, int, int]], tokens: int) -> Hashable:
        """Keep the spans for `add`; they are in the order of their tokens."""


class AdaptedLinear:
    """The linear layer `base`; the tokens of a step are changed by the adapters that they have.

    Those without one have the bits that `base` gives them.
    """

    __slots__ = ("_base", "_low_rank", "place")

    def __init__(self, base: Linear, place: int, low_rank: LowRank) -> None:
        self._base = base
        self._low_rank = low_rank
        self.place = place

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = self._base(x, residual)
        if self._low_rank.is_told:
            self._low_rank.add(self.place, x, out)
        return out


@dataclass(frozen=True, slots=True)
class TorchWeights:
    """An adapter's products as torch multiplies them: `layers` has those of each linear layer, by its place."""

    layers: Mapping[int, Sequence[Part]]

    @property
    def nbytes(self) -> int:
        return sum(part.down.nbytes + part.up.nbytes for parts in self.layers.values() for part in parts)


class TorchLowRank(LowRank):
    """By torch's operators, adapter by adapter and module by module: the reference."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._spans: Sequence[tuple[TorchWeights, int, int]] = ()

    def pack(self, layers: Mapping[int, Sequence[Part]]) -> TorchWeights:
        def placed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self._device)

        return TorchWeights(
            {
                place: [Part(part.begin, placed(part.down), placed(part.up)) for part in parts]
                for place, parts in layers.items()
            }
        )

    def add(self, place: int, x: torch.Tensor, out: torch.Tensor) -> None:
        for weights, begin, end in self._spans:
            for part in weights.layers.get(place, ()):
                changed = out.narrow(0, begin, end - begin).narrow(1, part.begin, len(part.up))
                changed.addmm_(x.narrow(0, begin, end - begin) @ part.down.t(), part.up.t())

    def _tell(self, spans: Sequence[tuple[TorchWeights, int, int]], tokens: int) -> Hashable:
        self._spans = spans
        return tuple((id(weights), begin, end) for weights, begin, end in spans)
