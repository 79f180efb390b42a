"""One pass over the logits [rows, vocabulary] (bfloat16 or float32) of rows that are sampled."""

from __future__ import annotations

import torch

from inference.kernels.library import Library, element, require


def _matrix(logits: torch.Tensor) -> tuple[int, int, int, int]:
    """The arguments that every pass begins with: the logits' type and address, rows and width."""
    rows, width = logits.shape
    return element(logits), require(logits, (rows, width), logits.dtype, "logits"), rows, width


def argmax(library: Library, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's largest logit (float32 [rows]) and the first token with it (int64 [rows]).

    A NaN counts as the largest.
    """
    rows = len(logits)
    peaks, tokens = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.long)
    library.argmax(*_matrix(logits), peaks.data_ptr(), tokens.data_ptr())
    return peaks, tokens


def gumbel_argmax(
    library: Library, logits: torch.Tensor, peaks: torch.Tensor, inverse: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Draw one token of each row (int64 [rows]) from the softmax of its logits times `inverse`, 1 / temperature.

    `peaks` float32 [rows] are the largest logits, `inverse` float32 [rows], `keys` int64 [rows]: the token's
    exponential is a pure function of key and token (splitmix64, as `inference.sampling.rng.exponentials`), and the
    token with the largest (logit - peak) · inverse - log(exponential) wins.
    """
    rows = len(logits)
    tokens = torch.empty(rows, dtype=torch.long)
    library.gumbel_argmax(
        *_matrix(logits),
        require(peaks, (rows,), torch.float32, "peaks"),
        require(inverse, (rows,), torch.float32, "inverse"),
        require(keys, (rows,), torch.int64, "keys"),
        tokens.data_ptr(),
    )
    return tokens


def filtered_argmax(
    library: Library,
    logits: torch.Tensor,
    peaks: torch.Tensor,
    inverse: torch.Tensor,
    keys: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Draw as `gumbel_argmax` does, among the tokens that pass the filters of their row; all filters are [rows].

    The `top_k` largest pass (int64; 0: all); of these, the largest ones before which less than `top_p` of their
    probability has accumulated; of these, those of at least `min_p` times the first's (float32). Logits aren't NaN.
    """
    rows = len(logits)
    tokens = torch.empty(rows, dtype=torch.long)
    if library.filtered_argmax(
        *_matrix(logits),
        require(peaks, (rows,), torch.float32, "peaks"),
        require(inverse, (rows,), torch.float32, "inverse"),
        require(top_k, (rows,), torch.int64, "top_k"),
        require(top_p, (rows,), torch.float32, "top_p"),
        require(min_p, (rows,), torch.float32, "min_p"),
        require(keys, (rows,), torch.int64, "keys"),
        tokens.data_ptr(),
    ):
        raise MemoryError("not enough memory for the candidates")
    return tokens


def rule_out(library: Library, logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Set to -inf in place each logit of the distinct `rows` (int64 [n]) whose bit in `masks` is 0.

    `masks` int32 [n, words]: bit i % 32 of word i // 32 for token i; tokens behind the last word have the bit 0.
    """
    is_bf16, address, count, width = _matrix(logits)
    words = masks.shape[1]
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise ValueError(f"rows are from 0 to {count - 1}")
    library.rule_out(
        is_bf16,
        address,
        width,
        len(rows),
        require(rows, (len(rows),), torch.int64, "rows"),
        require(masks, (len(rows), words), torch.int32, "masks"),
        words,
    )


def log_sum_exp(library: Library, logits: torch.Tensor, peaks: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Return log Σ exp((logit - peak) · inverse) of each row; all but `logits` are float32 [rows]."""
    rows = len(logits)
    sums = torch.empty(rows, dtype=torch.float32)
    library.log_sum_exp(
        *_matrix(logits),
        require(peaks, (rows,), torch.float32, "peaks"),
        require(inverse, (rows,), torch.float32, "inverse"),
        sums.data_ptr(),
    )
    return sums


def count_above(library: Library, logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Return how many logits of each row are above its bound (int64 [rows]), of `bounds` float32 [rows]."""
    rows = len(logits)
    counts = torch.empty(rows, dtype=torch.long)
    library.count_above(
        *_matrix(logits),
        require(bounds, (rows,), torch.float32, "bounds"),
        counts.data_ptr(),
    )
    return counts


def top_candidates(library: Library, logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` largest logits of each row in descending order (float32 [rows, k]) and their tokens (int64).

    Of equal ones the lower token comes first. `k` is at most the vocabulary; logits must not be NaN.
    """
    rows, width = logits.shape
    if not 0 < k <= width:
        raise ValueError(f"k is from 1 to the vocabulary of {width}, not {k}")
    values, tokens = torch.empty(rows, k, dtype=torch.float32), torch.empty(rows, k, dtype=torch.long)
    if library.top_candidates(*_matrix(logits), k, values.data_ptr(), tokens.data_ptr()):
        raise MemoryError("not enough memory for the candidates")
    return values, tokens
