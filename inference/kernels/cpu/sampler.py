"""One pass over the logits [rows, vocabulary] (bfloat16 or float32) of rows that are sampled."""

from __future__ import annotations

import torch

from inference.kernels.cpu.library import Library, element, require


def argmax(library: Library, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's largest logit (float32 [rows]) and the first token with it (int64 [rows]).

    A NaN counts as the largest.
    """
    rows, width = logits.shape
    peaks, tokens = torch.empty(rows), torch.empty(rows, dtype=torch.long)
    address = require(logits, (rows, width), logits.dtype, "logits")
    library.argmax(element(logits), address, rows, width, peaks.data_ptr(), tokens.data_ptr())
    return peaks, tokens


def gumbel_argmax(library: Library, logits: torch.Tensor, inverse: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draw one token of each row (int64 [rows]) from the softmax of its logits times `inverse`, 1 / temperature.

    `inverse` float32 [rows], `keys` int64 [rows]: the token's exponential is a pure function of key and token
    (splitmix64, as `inference.sampling.rng.exponentials`), and the token with the largest (logit - largest logit) ·
    inverse - log(exponential) wins.
    """
    rows, width = logits.shape
    tokens = torch.empty(rows, dtype=torch.long)
    library.gumbel_argmax(
        element(logits),
        require(logits, (rows, width), logits.dtype, "logits"),
        rows,
        width,
        require(inverse, (rows,), torch.float32, "inverse"),
        require(keys, (rows,), torch.int64, "keys"),
        tokens.data_ptr(),
    )
    return tokens


def log_sum_exp(library: Library, logits: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Return log Σ exp(logit · inverse) of each row (float32 [rows]); `inverse` float32 [rows] > 0."""
    rows, width = logits.shape
    sums = torch.empty(rows)
    library.log_sum_exp(
        element(logits),
        require(logits, (rows, width), logits.dtype, "logits"),
        rows,
        width,
        require(inverse, (rows,), torch.float32, "inverse"),
        sums.data_ptr(),
    )
    return sums


def top_candidates(library: Library, logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` largest logits of each row in descending order (float32 [rows, k]) and their tokens (int64).

    Of equal ones the lower token comes first. `k` is at most the vocabulary; logits must not be NaN.
    """
    rows, width = logits.shape
    if not 0 < k <= width:
        raise ValueError(f"k is from 1 to the vocabulary of {width}, not {k}")
    values, tokens = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.long)
    address = require(logits, (rows, width), logits.dtype, "logits")
    if library.top_candidates(element(logits), address, rows, width, k, values.data_ptr(), tokens.data_ptr()):
        raise MemoryError("not enough memory for the candidates")
    return values, tokens
