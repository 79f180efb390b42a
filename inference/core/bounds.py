"""How large a step may be: as the config permits, and smaller for a while after one ran out of memory."""

from __future__ import annotations

from inference.core.step import StepPlan

STEPS_BEFORE_GROWTH = 256  # committed steps after a failure until larger ones are tried again


class StepBounds:
    """The most `rows` and `tokens` of the next step, never more than those given, nor more rows than tokens.

    So each running row gets one token at least: else those that were admitted first would get all of them.
    """

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = self._most_rows = min(rows, tokens)
        self.tokens = self._most_tokens = tokens
        self._successes = 0

    def shrink(self, plan: StepPlan) -> bool:
        """Permit half the size of `plan`, which ran out of memory; False when no step can be smaller."""
        rows = len(plan.rows) + len(plan.encodes)
        if plan.rows and plan.tokens > 2 * rows:
            self.tokens = plan.tokens // 2
        elif rows > 1:
            self.rows = rows // 2
            self.tokens = max(self.rows, plan.tokens // 2)
        elif plan.rows and plan.tokens > 1:
            self.tokens = plan.tokens // 2
        else:
            return False
        self.rows = min(self.rows, self.tokens)
        self._successes = 0
        return True

    def note_success(self) -> None:
        """Count a committed step; after STEPS_BEFORE_GROWTH of them the bounds are doubled."""
        if self.rows == self._most_rows and self.tokens == self._most_tokens:
            return
        self._successes += 1
        if self._successes >= STEPS_BEFORE_GROWTH:
            self._successes = 0
            self.rows = min(2 * self.rows, self._most_rows)
            self.tokens = min(2 * self.tokens, self._most_tokens)  # no fewer than rows, which were no more
