"""The row of a step that computes a sequence's next tokens, with drafts behind them where those are worth trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inference.core.resident import Residents
from inference.core.sequence import Sequence
from inference.core.step import Row

Propose = Callable[[Sequence, int], tuple[int, ...]]
"""Guesses up to so many tokens that a sequence will generate next; wrong ones cost time and change nothing."""


def next_row(seq: Sequence, count: int, drafts: tuple[int, ...] = ()) -> Row:
    """Schedule the next `count` tokens of `seq`, and `drafts` behind them; return their row."""
    tokens, start, expected = seq.tokens, seq.scheduled, seq.expected
    known = len(tokens)
    end = seq.scheduled = start + count + len(drafts)
    samples = end == known + expected + len(drafts)
    seq.expected += samples
    seq.in_flight += 1
    seq.begun = True
    fields = (
        seq.slot,
        seq.request_id,
        (*tokens[start : start + count], *drafts),
        start,
        seq.table,
        samples,
        known - len(seq.prompt) + expected,
        seq.sampling,
        seq.seed,
        seq.history,
        seq.banned,
        _targets(seq, start, count) if seq.told < len(seq.prompt) else (),
        start >= known,
        len(drafts),
        seq.adapter,
        seq.grammar,
    )
    return tuple.__new__(Row, fields)  # Row(…) takes three times as long, and a step makes one for each sequence


def _targets(seq: Sequence, start: int, count: int) -> tuple[int, ...]:
    """Return the prompt tokens behind the `count` tokens from place `start`; none if all of them were told of."""
    end = min(start + count + 1, len(seq.prompt))
    return seq.prompt[start + 1 : end] if end > seq.told else ()


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculation with drafts from `propose`, while at most `max_running` sequences run: then a row more is cheap.

    Proposals need the tokens in flight, so that each step is committed before the next is planned.
    """

    propose: Propose
    max_running: int

    def is_on(self, residents: Residents) -> bool:
        """Whether the next step may have drafts."""
        return len(residents.running) <= self.max_running

    def drafts(self, counts: dict[Sequence, int], residents: Residents, budget: int) -> dict[Sequence, tuple[int, ...]]:
        """Return drafts for the decode rows of `counts`, `budget` in all, and with blocks for them."""
        found: dict[Sequence, tuple[int, ...]] = {}
        if len(counts) > self.max_running:
            return found
        for seq in counts:
            most = min(budget, seq.limit - seq.known - 1)
            if most > 0 and seq.due == 1 and not seq.failures:
                drafts = self.propose(seq, most)[:most]
                if drafts and residents.grow(seq, 1 + len(drafts)):
                    found[seq] = drafts
                    budget -= len(drafts)
        return found
