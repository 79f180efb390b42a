"""Processors that need nothing but a row's parameters: logit bias, allowed tokens, and the ban of ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.core.step import Row
from inference.sampling.state import Admitted


def process(logits: torch.Tensor, rows: Sequence[Row], states: Sequence[Admitted]) -> None:
    """Apply them to `logits` [rows, vocabulary] in place, in this order; a token that is ruled out gets -inf.

    The ids of a row's bias and of its allowed tokens are distinct.
    """
    for number, (row, state) in enumerate(zip(rows, states, strict=True)):
        if not state.is_masked:
            continue
        line = logits[number]
        if state.bias is not None:
            line.index_add_(0, *state.bias)
        if state.allowed is not None:
            kept = line[state.allowed]
            line.fill_(float("-inf"))
            line[state.allowed] = kept
        # What guidance permits has been cut by them already, unless it permits nothing else.
        if state.banned is not None and row.grammar is None and row.output_index < row.sampling.min_tokens:
            line[state.banned] = float("-inf")
