"""The sequences of steps that failed: each runs alone until it is known whose fault it was."""

from __future__ import annotations

from collections.abc import Iterator

from inference.core.bounds import StepBounds
from inference.core.sequence import Sequence, Status
from inference.core.step import StepPlan


class Suspects:
    """Sequences whose last step failed, running or waiting, in the order in which they are to run alone.

    A step that ran out of memory was too large, or one of its rows would be in any step. So the first time a step
    with fewer prompt tokens is tried. Rows that fail again become suspects, those first that computed most, at the most
    distant places. One that fails alone computes less at a time from then on, until it has failed with one token; the
    others aren't suspected any more. Only when none fails alone do steps get fewer rows (`decide`).
    """

    def __init__(self, bounds: StepBounds) -> None:
        self._bounds = bounds
        self._members: dict[Sequence, None] = {}
        self._undecided: StepPlan | None = None  # it ran out of memory, and not all of its suspects have run alone

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members)

    def accuse(self, seq: Sequence) -> None:
        """Count a failure of `seq` and let it run alone; with the second in a row it is at fault."""
        seq.failures += 1
        self._members[seq] = None

    def acquit(self, seq: Sequence) -> None:
        """Let `seq`, of which a step was committed, run beside others again."""
        seq.failures = seq.exhausted = 0
        self.forget(seq)

    def forget(self, seq: Sequence) -> None:
        """Drop `seq`, which has ended."""
        self._members.pop(seq, None)

    def note_failure(self, plan: StepPlan, sequences: tuple[Sequence, ...], error: BaseException) -> None:
        """Accuse those of `sequences`, whose rows are those of `plan`, that may be at fault for the failed step."""
        rows = {seq: row for seq, row in zip(sequences, plan.rows, strict=True) if seq.status is not Status.FINISHED}
        accused = list(rows)
        if rows and isinstance(error, MemoryError):
            if len(plan.rows) == 1 and accused[0].failures:
                accused = self._exhausted_alone(accused[0], plan)
            else:
                accused = self._exhausted(accused, plan)
                accused.sort(key=lambda seq: (rows[seq].count, rows[seq].start), reverse=True)
        for seq in accused:
            self.accuse(seq)

    def decide(self) -> None:
        """Make steps smaller if one ran out of memory and all of its suspects have run alone without failing."""
        if self._undecided is not None and not self._members:
            self._bounds.shrink(self._undecided)
            self._undecided = None

    def _exhausted(self, sequences: list[Sequence], plan: StepPlan) -> list[Sequence]:
        for seq in sequences:
            seq.exhausted += 1
        again = [seq for seq in sequences if seq.exhausted > 1]
        if again:
            self._undecided = plan
        else:
            self._bounds.shrink(plan, spare_rows=True)
        return again

    def _exhausted_alone(self, culprit: Sequence, plan: StepPlan) -> list[Sequence]:
        self._undecided = None
        for seq in list(self._members):
            if seq.exhausted and seq is not culprit:
                self.acquit(seq)
        if plan.tokens > 1:
            culprit.chunk = plan.tokens // 2
            return []
        self._bounds.restore()
        return [culprit]
