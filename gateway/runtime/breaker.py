"""A circuit breaker: an engine that fails again and again gets no requests for a while, then one at a time as a proof.

closed ── FAILURES in a row ──▶ open ── the wait is over ──▶ half-open ── a request succeeds ──▶ closed
▲                              │
└────── it fails: twice the wait ┘
"""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 3
FIRST_SECONDS = 5.0
LONGEST_SECONDS = 60.0


class Breaker:
    """See the module. What a client did wrong, and what the engine declined for lack of room, is no failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        self._seconds = FIRST_SECONDS
        self._is_probed = False

    @property
    def state(self) -> str:
        """One of "closed", "open" and "half-open"."""
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() < self._opened_at + self._seconds else "half-open"

    @property
    def obstacle(self) -> str:
        """Why no request may be sent now; empty when one may."""
        if self._opened_at is None:
            return ""
        rest = self._opened_at + self._seconds - self._clock()
        if rest > 0:
            return f"circuit open after {self._failures} failures, next try in {rest:.0f} s"
        return "circuit half-open: a request is proving it" if self._is_probed else ""

    @property
    def remark(self) -> str:
        """What operators should know although a request may be sent now; empty when nothing."""
        if self.state != "half-open" or self._is_probed:
            return ""
        return f"circuit half-open after {self._failures} failures: the next request proves it"

    def enter(self) -> bool:
        """Note that a request is sent; True when it is the one that proves the engine."""
        is_probe = self._opened_at is not None and not self._is_probed
        self._is_probed = self._is_probed or is_probe
        return is_probe

    def leave(self, is_probe: bool) -> None:
        """Note that a request ended without saying anything about the engine."""
        if is_probe:
            self._is_probed = False

    def succeeded(self) -> None:
        """Note that the engine does its work."""
        self._failures, self._opened_at, self._seconds, self._is_probed = 0, None, FIRST_SECONDS, False

    def failed(self, *, is_probe: bool) -> None:
        """Note that it failed. While half-open only the proof says anything: others were sent before it."""
        is_half_open = self.state == "half-open"
        if is_half_open and not is_probe:
            return
        self._failures += 1
        if is_half_open:
            self._seconds = min(2 * self._seconds, LONGEST_SECONDS)
            self._opened_at, self._is_probed = self._clock(), False
        elif self._opened_at is None and self._failures >= FAILURES:
            self._opened_at, self._is_probed = self._clock(), False
