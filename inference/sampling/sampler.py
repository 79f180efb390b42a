"""Choosing the next token of each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.core.step import Row, RowFailure
from inference.sampling.filters import surviving
from inference.sampling.rng import exponentials
from inference.sampling.rows import SamplingRows

CANDIDATES = 1024  # largest logits that are tried first: most rows need no others, and sorting all is slow


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[int | RowFailure]:
    """Return the token of each row from `logits` [rows, vocabulary], or the failure of a row without finite logits.

    A row's result depends on its own logits, parameters, seed and output index alone. Temperature 0 takes the largest
    logit (the first of equals). Otherwise the token with the smallest Exp(1) / probability is an exact draw.
    """
    logits = logits.float()
    peak, best = logits.max(1, keepdim=True)
    finite = torch.isfinite(peak[:, 0]).tolist()  # a NaN or +inf anywhere is the maximum; all -inf likewise
    tokens = best[:, 0].tolist()
    if all(finite) and all(row.sampling.temperature <= 0 for row in rows):
        return [*tokens]
    params = SamplingRows.of(rows)
    drawn = [i for i in params.unfiltered if finite[i]]
    if drawn:
        scaled = (logits[drawn] - peak[drawn]) / params.temperature[drawn]
        race = scaled - exponentials(params.keys[drawn], torch.arange(logits.shape[1])[None]).log_()
        for i, token in zip(drawn, race.argmax(1).tolist(), strict=True):
            tokens[i] = token
    for i, token in _filtered(logits, peak, params, [i for i in params.filtered if finite[i]]):
        tokens[i] = token
    failure = RowFailure("non_finite_logits", "The model gave logits that are not finite for this request.")
    return [token if ok else failure for token, ok in zip(tokens, finite, strict=True)]


def _filtered(
    logits: torch.Tensor, peak: torch.Tensor, params: SamplingRows, numbers: list[int]
) -> list[tuple[int, int]]:
    """Return (row number, token) for the rows `numbers`: from their candidates, or from all tokens where needed."""
    chosen: list[tuple[int, int]] = []
    vocabulary = logits.shape[1]
    for count in (min(CANDIDATES, vocabulary), vocabulary):
        if not numbers:
            break
        shifted = logits[numbers] - peak[numbers]
        temperature = params.temperature[numbers]
        values, ids = (
            torch.sort(shifted, stable=True, dim=1, descending=True)
            if count == vocabulary
            else shifted.topk(count, dim=1)
        )
        scaled = values / temperature
        mask, complete = surviving(
            scaled,
            torch.logsumexp(shifted / temperature, 1, keepdim=True),
            params.top_k[numbers],
            params.top_p[numbers],
            params.min_p[numbers],
        )
        race = (scaled - exponentials(params.keys[numbers], ids).log_()).masked_fill_(~mask, float("-inf"))
        winners = ids.gather(1, race.argmax(1, keepdim=True))[:, 0].tolist()
        done = complete.tolist() if count < vocabulary else [True] * len(numbers)
        chosen += [(i, token) for i, token, ok in zip(numbers, winners, done, strict=True) if ok]
        numbers = [i for i, ok in zip(numbers, done, strict=True) if not ok]
    return chosen
