"""Top-k, then top-p, then min-p, on logits in descending order."""

from __future__ import annotations

import torch


def surviving(
    scaled: torch.Tensor,
    log_total: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Say which candidates of each row survive its filters.

    `scaled` [n, m] holds a row's m largest logits after temperature, in descending order; `log_total` [n, 1] the
    log-sum-exp over its whole vocabulary. Top-k keeps k candidates; top-p, over what top-k left, keeps those before
    which less than p has accumulated (the first always); min-p, over the same, keeps those of at least min_p times the
    first's probability. Returns (mask [n, m], whole [n]): `whole` is False where the m candidates can't show the full
    answer, because the last of them survives too.
    """
    count = scaled.shape[1]
    ranks = torch.arange(count)
    within = torch.where(top_k > 0, ranks < top_k, True)
    # What top-k left is normalised anew; without it the whole vocabulary is the base, also beyond the candidates.
    limited = torch.where(within, scaled, float("-inf"))
    base = torch.where((top_k > 0) & (top_k <= count), torch.logsumexp(limited, 1, keepdim=True), log_total)
    probabilities = torch.exp(limited - base)
    before = probabilities.cumsum(1) - probabilities
    mask = within & ((before < top_p) | (top_p >= 1) | (ranks == 0))
    mask &= scaled >= scaled[:, :1] + torch.log(min_p)
    # top_k > m with top_p: the base above would be the whole vocabulary instead of the first k, so look further.
    unknown = (top_k > count) & (top_p < 1)
    whole = ~mask[:, -1] | (top_k[:, 0] == count)
    return mask, whole & ~unknown[:, 0]
