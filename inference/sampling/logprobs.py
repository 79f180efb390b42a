"""Log-probabilities of chosen tokens, their ranks, and the most probable tokens beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.types import PositionLogprobs, TokenLogprob

CHUNK = 64  # positions whose logits are in memory at once


@dataclass(frozen=True, slots=True)
class Distributions:
    """What is to be told of n raw distributions: `total` [n, 1] log-sum-exps, and the `ids` and `values` [n, most] of
    the largest logits, of which line i wants the first `counts[i]`.
    """

    logits: torch.Tensor
    total: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    counts: Sequence[int]

    @classmethod
    def of(cls, logits: torch.Tensor, counts: Sequence[int]) -> Distributions:
        """Return those of `logits` [n, vocabulary] (float32), which is kept and must not be changed."""
        most = min(max(counts), logits.shape[1])
        values, ids = logits.topk(most, 1)
        return cls(logits, torch.logsumexp(logits, 1, keepdim=True), ids, values, counts)

    def positions(self, chosen: torch.Tensor) -> list[PositionLogprobs]:
        """Return what is told where `chosen` [n] stand."""
        logit = self.logits.gather(1, chosen[:, None])
        ranks = (self.logits > logit).sum(1).add_(1).tolist()
        own = (logit - self.total)[:, 0].tolist()
        ids, values = self.ids.tolist(), (self.values - self.total).tolist()
        return [
            PositionLogprobs(
                TokenLogprob(token, own[i]),
                ranks[i],
                tuple(TokenLogprob(*pair) for pair in zip(ids[i][:count], values[i][:count], strict=True)),
            )
            for i, (token, count) in enumerate(zip(chosen.tolist(), self.counts, strict=True))
        ]
