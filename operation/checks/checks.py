"""The list of all checks, how it is gone through, and the periodic work that notes what it finds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from django.db import DatabaseError

from base.checks import Check, Result, results
from gateway.runtime.observed import leave_canaries, note_result
from operation.checks import catalogue, database, machine, services, serving

CHECKS: tuple[Check[str], ...] = (
    *machine.CHECKS,
    *database.CHECKS,
    *machine.STANDING_ON_ROWS,
    *services.CHECKS,
    *serving.CHECKS,
    *catalogue.CHECKS,
)


ROUND_SECONDS = 60.0


def examine(base_url: str = "") -> Iterator[Result]:
    """Yield the result of each check, from the ground up; the gateway is asked at `base_url`, else this home's."""
    return results(CHECKS, base_url)


class Round:
    """Rounds of all checks for the periodic work, one check at each turn; each round has those that are due."""

    def __init__(self) -> None:
        self._left: Iterator[Result] | None = None
        self._due_at: dict[str, float] = {}

    def turn(self) -> bool:
        """Make the round's next check, of a new round if none is begun, and note what it found; return whether more are
        left.
        """
        if self._left is None:
            with suppress(DatabaseError):  # the checks tell what it takes nothing for
                leave_canaries()
            self._left = results(self._due(), "")
        result = next(self._left, None)
        if result is None:
            self._left = None
            return False
        note_result(result)
        return True

    def _due(self) -> Iterator[Check[str]]:
        for check in CHECKS:
            if time.monotonic() >= self._due_at.get(check.name, 0.0):
                self._due_at[check.name] = time.monotonic() + check.every_s - ROUND_SECONDS / 2
                yield check
