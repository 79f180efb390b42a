"""The sampling filters top-k, top-p and min-p, on logits in descending order."""

from __future__ import annotations

import torch


def surviving(
    scaled: torch.Tensor,
    log_total: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find which candidates of each row pass its filters.

    `scaled` [n, m] holds a row's m largest logits after temperature, in descending order; `log_total` [n, 1] the
    log-sum-exp over its whole vocabulary. Top-k keeps k candidates; of these, top-p keeps
    those before which less than p has accumulated (the first always), and min-p those of at least min_p times the
    first's probability. Return (mask [n, m], complete [n]): `complete` is False where a token beyond the m candidates
    may pass too, since the last of them does.
    """
    count = scaled.shape[1]
    ranks = torch.arange(count, device=scaled.device)
    within = torch.where(top_k > 0, ranks < top_k, True)
    # Probabilities are normalised over the top k; without top-k, over the whole vocabulary.
    limited = torch.where(within, scaled, float("-inf"))
    base = torch.where((top_k > 0) & (top_k <= count), torch.logsumexp(limited, 1, keepdim=True), log_total)
    probabilities = torch.exp(limited - base)
    before = probabilities.cumsum(1) - probabilities
    mask = within & ((before < top_p) | (top_p >= 1) | (ranks == 0))
    mask &= (scaled >= scaled[:, :1] + torch.log(min_p)) & (scaled > float("-inf"))
    # With top_k > m and top_p the base above is the whole vocabulary instead of the first k: not known yet.
    unknown = (top_k > count) & (top_p < 1)
    complete = ~mask[:, -1] | (top_k[:, 0] == count)
    return mask, complete & ~unknown[:, 0]
