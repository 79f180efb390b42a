"""Verifying drafts: a draft is accepted if it is what the ordinary sampler chooses in its place.

So the output is the ordinary sampler's own, token for token, with drafts or without: greedy, seeded, with penalties,
masks and log-probabilities. A draft that is a copy of earlier text is accepted as often as by rejection sampling, and
one of a draft model that shares the noise seldom less (Daliri et al., Coupling without communication and
drafter-invariant speculative decoding, 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from inference.core.step import Row, RowFailure, RowResult
from inference.sampling.sampler import Sampled, Sampler
from inference.types import PositionLogprobs


@dataclass(slots=True)
class _Chosen:
    """A row's result so far; `drafts` are the row's."""

    drafts: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    failure: RowFailure | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the newest token is the draft in its place."""
        place = len(self.tokens) - 1
        return self.failure is None and place < len(self.drafts) and self.tokens[place] == self.drafts[place]

    @property
    def result(self) -> RowResult | RowFailure:
        # Behind a token that it has, a failure comes again when that token is the last known one.
        if self.failure is not None and not self.tokens:
            return self.failure
        return RowResult(tuple(self.tokens), tuple(self.logprobs))


def choose(sampler: Sampler, logits: torch.Tensor, rows: Sequence[Row]) -> list[RowResult | RowFailure]:
    """Return what each row gets from `logits` [Σ (1 + drafts), vocabulary], its lines in order, one for each place.

    A row gets a token, and one more behind each draft that was accepted, up to a line that fails; it fails itself when
    that is its first. `logits` may be overwritten.
    """
    if not any(row.drafts for row in rows):
        return _single(sampler.sample(logits, rows))
    chosen = [_Chosen(row.ids[len(row.ids) - row.drafts :]) for row in rows]
    firsts: list[int] = []
    total = 0
    for row in rows:
        firsts.append(total)
        total += 1 + row.drafts
    open_rows = list(range(len(rows)))
    place = 0
    # Place by place, so that a row's penalties count what was chosen before, and nothing is sampled behind a mistake.
    while open_rows:
        lines = [firsts[i] + place for i in open_rows]
        moved = [rows[i]._replace(output_index=rows[i].output_index + place) for i in open_rows]
        _sample(sampler, logits[lines], moved, [chosen[i] for i in open_rows])
        open_rows = [i for i in open_rows if chosen[i].goes_on]
        place += 1
    return [each.result for each in chosen]


def _single(sampled: Sampled) -> list[RowResult | RowFailure]:
    """Return the results of rows with one place each."""
    tokens: list[int] = sampled.tokens.tolist()
    # RowResult(…) takes twice as long, and a step makes one for each row.
    results: list[RowResult | RowFailure] = [tuple.__new__(RowResult, ((token,), (), ())) for token in tokens]
    for number, told in sampled.logprobs.items():
        results[number] = RowResult((tokens[number],), (told,))
    for number, failure in sampled.failures.items():
        results[number] = failure
    return results


def _sample(sampler: Sampler, logits: torch.Tensor, rows: Sequence[Row], chosen: Sequence[_Chosen]) -> None:
    sampled = sampler.sample(logits, rows)
    tokens: list[int] = sampled.tokens.tolist()
    for number, (each, token) in enumerate(zip(chosen, tokens, strict=True)):
        if number in sampled.failures:
            each.failure = sampled.failures[number]
            continue
        each.tokens.append(token)
        if number in sampled.logprobs:
            each.logprobs.append(sampled.logprobs[number])
