"""From the hidden states of a step to what each row gets: tokens, and log-probabilities of prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.core.step import NOTHING_SAMPLED, Row, RowFailure, RowResult
from inference.execution.backend import CausalBackend
from inference.sampling.logprobs import CHUNK
from inference.sampling.sampler import NON_FINITE, Sampler
from inference.sampling.verify import choose
from inference.types import PositionLogprobs


def answers(
    sampler: Sampler, model: CausalBackend, hidden: torch.Tensor, rows: Sequence[Row], counts: Sequence[int]
) -> list[RowResult | RowFailure]:
    """Return the result of each row, of which `hidden` [Σ counts, width] has the last `counts` tokens."""
    if all(row.samples and not row.targets for row in rows):
        return choose(sampler, model.logits(hidden), rows)
    results: list[RowResult | RowFailure] = [NOTHING_SAMPLED] * len(rows)
    lines: list[int] | None = None
    if any(row.targets for row in rows):
        lines = []
        begin = 0
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            if row.targets:
                results[number] = _scored(sampler, model, hidden[begin : begin + len(row.targets)], row)
            begin += count
            if row.samples:
                lines.extend(range(begin - 1 - row.drafts, begin))
    sampling = [number for number, row in enumerate(rows) if row.samples]
    if sampling:
        logits = model.logits(hidden if lines is None else hidden[lines])
        for number, chosen in zip(sampling, choose(sampler, logits, [rows[i] for i in sampling]), strict=True):
            scored = results[number]
            if isinstance(chosen, RowFailure):
                results[number] = chosen
            elif isinstance(scored, RowResult):
                results[number] = chosen._replace(prompt_logprobs=scored.prompt_logprobs)
    return results


def newest(rows: Sequence[Row], results: Sequence[RowResult | RowFailure]) -> dict[int, int]:
    """Return the newest token of each slot that got one."""
    return {
        row.slot: result.tokens[-1]
        for row, result in zip(rows, results, strict=True)
        if isinstance(result, RowResult) and result.tokens
    }


def _scored(sampler: Sampler, model: CausalBackend, hidden: torch.Tensor, row: Row) -> RowResult | RowFailure:
    """Return the log-probabilities of the row's targets, from their hidden states; few logits at once are in memory."""
    told: list[PositionLogprobs] = []
    for begin in range(0, len(row.targets), CHUNK):
        targets = row.targets[begin : begin + CHUNK]
        part = sampler.distributions(
            model.logits(hidden[begin : begin + CHUNK]), [row.sampling.prompt_logprobs or 0] * len(targets)
        )
        if not all(part.finite):
            return NON_FINITE
        told += part.positions(torch.tensor(targets).to(hidden.device))
    return RowResult(prompt_logprobs=tuple(told))
