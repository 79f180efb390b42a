"""How large a step may be now: what the config permits, and less for a while after one ran out of memory."""

from __future__ import annotations

from inference.core.step import StepPlan

SOUND_STEPS = 256  # so many without a failure before a step may be larger again


class StepBounds:
    """`rows` and `tokens` of the next step, at most those given."""

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = self._most_rows = rows
        self.tokens = self._most_tokens = tokens
        self._sound = 0

    def shrink(self, plan: StepPlan) -> bool:
        """Permit half of `plan`, which ran out of memory; False when no step can be smaller than that."""
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
        self._sound = 0
        return True

    def count(self) -> None:
        """Note a step that went well: after enough of them, twice as much is tried again."""
        if self.rows == self._most_rows and self.tokens == self._most_tokens:
            return
        self._sound += 1
        if self._sound >= SOUND_STEPS:
            self._sound = 0
            self.rows = min(2 * self.rows, self._most_rows)
            self.tokens = min(2 * self.tokens, self._most_tokens)
