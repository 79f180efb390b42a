"""Around a mixture of experts: which experts a token goes to, and the sum of what they gave.

The products of the experts themselves are linear layers (`linear.py`).
"""

from __future__ import annotations

import torch

from inference.kernels.library import Library, element, require

MOST = 1024  # experts


def route(
    library: Library, logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's experts int32 [tokens, chosen], the likeliest first, and their weights float32.

    `logits` is [tokens, experts], with at most MOST experts. A weight is the softmax over all experts, or over those
    chosen with `is_normalised`. With `is_shared` the logits have one more column and so have the weights: its sigmoid.
    """
    tokens, columns = logits.shape
    experts = columns - is_shared
    if not 0 < chosen <= experts <= MOST:
        raise ValueError(f"{chosen} of {experts} experts can't be chosen; at most {MOST} are possible")
    numbers = torch.empty(tokens, chosen, dtype=torch.int32)
    weights = torch.empty(tokens, chosen + is_shared, dtype=torch.float32)
    library.route(
        element(logits),
        require(logits, (tokens, columns), logits.dtype, "logits"),
        numbers.data_ptr(),
        weights.data_ptr(),
        tokens,
        experts,
        chosen,
        is_normalised,
        is_shared,
    )
    return numbers, weights


def combine(
    library: Library,
    rows: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return Σ weights[t, k] · rows[places[t, k]] (+ residual[t]) [tokens, width] for each token t.

    `places` int32 and `weights` float32 [tokens, terms]; the sum is in float32, in the order of k, and rounded once.
    """
    (tokens, terms), width = places.shape, rows.shape[1]
    out = rows.new_empty(tokens, width)
    library.combine(
        element(rows),
        require(rows, (rows.shape[0], width), rows.dtype, "rows"),
        require(places, (tokens, terms), torch.int32, "places"),
        require(weights, (tokens, terms), torch.float32, "weights"),
        None if residual is None else require(residual, (tokens, width), rows.dtype, "residual"),
        out.data_ptr(),
        tokens,
        terms,
        width,
    )
    return out
