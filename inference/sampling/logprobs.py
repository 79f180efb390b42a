"""Log-probabilities of chosen tokens, their ranks, and the most probable tokens beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.sampling.passes import Passes
from inference.types import PositionLogprobs, TokenLogprob

CHUNK = 64  # positions whose logits are in memory at once


@dataclass(frozen=True, slots=True)
class Distributions:
    """Log-probabilities of n raw distributions: `total` [n, 1] log-sum-exps, and the `ids` and `values` [n, most] of
    the largest logits, of which line i wants the first `counts[i]`.
    """

    passes: Passes
    logits: torch.Tensor
    total: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    counts: Sequence[int]

    @classmethod
    def of(cls, passes: Passes, logits: torch.Tensor, counts: Sequence[int]) -> Distributions:
        """Return those of `logits` [n, vocabulary], as `passes.read` returned them, which must not be changed."""
        values, ids = passes.largest(logits, max(1, min(max(counts), logits.shape[1])))
        peak = values[:, 0].float()
        total = passes.log_sum_exp(logits, peak, torch.ones_like(peak)) + peak
        return cls(passes, logits, total[:, None], ids, values, counts)

    @property
    def finite(self) -> list[bool]:
        """Whether each of them is a distribution."""
        return torch.isfinite(self.total[:, 0]).tolist()

    def positions(self, chosen: torch.Tensor) -> list[PositionLogprobs]:
        """Return what is told where `chosen` [n] stand."""
        logit = self.logits.gather(1, chosen[:, None])[:, 0].float()
        ranks = self.passes.count_above(self.logits, logit).add_(1).tolist()
        own = (logit - self.total[:, 0]).tolist()
        ids, values = self.ids.tolist(), (self.values.float() - self.total).tolist()
        return [
            PositionLogprobs(
                TokenLogprob(token, own[i]),
                ranks[i],
                tuple(TokenLogprob(*pair) for pair in zip(ids[i][:count], values[i][:count], strict=True)),
            )
            for i, (token, count) in enumerate(zip(chosen.tolist(), self.counts, strict=True))
        ]
