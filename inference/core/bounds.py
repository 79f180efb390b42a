"""How large a step may be: as the config permits, and smaller for a while after one ran out of memory."""

from __future__ import annotations

from inference.core.step import StepPlan

STEPS_BEFORE_GROWTH = 8  # committed steps after a failure until larger ones are tried again
MOST_STEPS_BEFORE_GROWTH = 256  # the same where larger ones have failed again and again


class StepBounds:
    """The most `rows` and `tokens` of the next step, never more than those given, nor more rows than tokens.

    So each running row gets one token at least: else those that were admitted first would get all of them. `seconds` is
    how long its prompts may take, where others than this scheduler's requests wait for it to end.
    """

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = self._most_rows = min(rows, tokens)
        self.tokens = self._most_tokens = tokens
        self.seconds = float("inf")
        self._before = self.rows, self.tokens  # before they shrank last
        self._successes = 0  # since the bounds changed last
        self._patience = STEPS_BEFORE_GROWTH
        self._has_grown = False  # rather than shrunk when they changed last

    def shrink(self, plan: StepPlan, *, spare_rows: bool = False) -> bool:
        """Permit half the size of `plan`, which ran out of memory; False when no step can be smaller.

        With `spare_rows` only if its rows still fit, so that none has to be preempted.
        """
        before = self.rows, self.tokens
        rows = len(plan.rows) + len(plan.encodes)
        if plan.rows and plan.tokens > 2 * rows:
            tokens = plan.tokens // 2
        elif spare_rows:
            return False
        elif rows > 1:
            self.rows = min(self.rows, rows // 2)
            tokens = max(self.rows, plan.tokens // 2)
        elif plan.rows and plan.tokens > 1:
            tokens = plan.tokens // 2
        else:
            return False
        self.tokens = min(self.tokens, tokens)
        self.rows = min(self.rows, self.tokens)
        self._before = before
        if self._has_grown:
            # What failed soon after it was tried again is tried later the next time.
            is_soon = self._successes < MOST_STEPS_BEFORE_GROWTH
            self._patience = min(2 * self._patience, MOST_STEPS_BEFORE_GROWTH) if is_soon else STEPS_BEFORE_GROWTH
        self._has_grown = False
        self._successes = 0
        return True

    def restore(self) -> None:
        """Permit what was permitted before the bounds shrank last, for which one request is to blame."""
        self.rows = max(self.rows, self._before[0])
        self.tokens = max(self.tokens, self._before[1])
        self._patience = STEPS_BEFORE_GROWTH

    def note_success(self) -> None:
        """Count a committed step; after STEPS_BEFORE_GROWTH, or more where that failed before, the bounds double."""
        self._successes += 1
        if self._successes >= self._patience and (self.rows, self.tokens) != (self._most_rows, self._most_tokens):
            self._successes = 0
            self._has_grown = True
            self.rows = min(2 * self.rows, self._most_rows)
            self.tokens = min(2 * self.tokens, self._most_tokens)  # no fewer than rows, which were no more
