"""The passes over all logits of a step: what the kernels of each tier implement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from inference.sampling.state import Gathered


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows to be drawn: `logits` [n, vocabulary], the largest of each, `peak` [n], their parameters and `keys` [n]."""

    logits: torch.Tensor
    peak: torch.Tensor
    params: Gathered
    keys: torch.Tensor

    def among(self, numbers: list[int]) -> Lines:
        """Return those with these numbers."""
        return Lines(self.logits[numbers], self.peak[numbers], self.params.among(numbers), self.keys[numbers])


class Passes(Protocol):
    """Functions of `logits` [n, vocabulary], contiguous; each result of a line depends on that line alone."""

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        """Return `logits` in a dtype that these passes compute in."""
        ...

    def argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest logits (float32 [n]) and the first tokens with them (int64 [n]); NaN is the largest."""
        ...

    def rule_out(self, logits: torch.Tensor, numbers: torch.Tensor, masks: torch.Tensor) -> None:
        """Set to -inf in place each logit of the lines `numbers` (int64 [n], distinct) whose bit in `masks` is 0.

        `masks` int32 [n, words], on the CPU: bit i % 32 of word i // 32 for token i; those behind the last have 0.
        """
        ...

    def draw(self, lines: Lines) -> torch.Tensor:
        """Return a token [n] for each line, drawn from the softmax of its logits / temperature by its noise key.

        The token with the largest (logit - peak) / temperature less the logarithm of its exponential variate wins, the
        first of equals.
        """
        ...

    def draw_filtered(self, lines: Lines) -> torch.Tensor:
        """Return a token [n] for each line, drawn so among what passes its top-k, top-p and min-p."""
        ...

    def log_sum_exp(self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        """Return log Σ exp((logit - peak) / temperature) of each line (float32 [n])."""
        ...

    def largest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the `count` largest logits in descending order (float32 [n, count]) and their tokens."""
        ...

    def count_above(self, logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        """Return how many logits of each line are above its bound (int64 [n]), of `bounds` float32 [n]."""
        ...
