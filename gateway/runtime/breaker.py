"""A circuit breaker: an engine that fails again and again gets no requests for a while, then one a second as a proof.

closed ── FAILURES in a row ──▶ open ── the wait is over ──▶ half-open ── a request ends well ──▶ closed
▲                              │
└── one more fails: twice the wait ┘

A proof that begins to answer lets others in beside it, since a long answer would keep them out for minutes; but only
one that ends well clears what failed before. One that doesn't begin at once may wait for its own tenant's sake, or in a
queue, and is joined by another after PROOF_SECONDS. Each request has a ticket: one sent before the circuit last opened
says nothing of the engine as it is now.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 3
FIRST_SECONDS = 5.0
LONGEST_SECONDS = 60.0
PROOF_SECONDS = 1.0  # for which nobody else is sent where a request proves the engine


class Breaker:
    """One engine's circuit. What a client did wrong, and what the engine declined for lack of room, is no failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        self._seconds = FIRST_SECONDS
        self._tickets = 0
        self._before = 0  # the last ticket of before it opened
        self._proof = 0  # the ticket of the latest request that proves it; 0 for none
        self._proof_until = 0.0

    @property
    def state(self) -> str:
        """One of "closed", "open" and "half-open"."""
        if self._opened_at is None:
            return "half-open" if self._failures >= FAILURES else "closed"
        return "open" if self._clock() < self._opened_at + self._seconds else "half-open"

    @property
    def obstacle(self) -> str:
        """Why no request may be sent now; empty when one may."""
        if self._opened_at is None:
            return ""
        rest = self._opened_at + self._seconds - self._clock()
        if rest > 0:
            return f"circuit open after {self._failures} failures, next try in {rest:.0f} s"
        return "circuit half-open: a request is proving it" if self._is_proving else ""

    @property
    def remark(self) -> str:
        """What operators should know although a request may be sent now; empty when nothing."""
        if self.state != "half-open" or self._is_proving:
            return ""
        proves = "the next request proves it" if self._opened_at is not None else "no request has ended well yet"
        return f"circuit half-open after {self._failures} failures: {proves}"

    def enter(self) -> int:
        """Return the ticket of a request that is sent now. Where the circuit waits for its proof, it is that."""
        self._tickets += 1
        if self._opened_at is not None and not self._is_proving:
            self._proof, self._proof_until = self._tickets, self._clock() + PROOF_SECONDS
        return self._tickets

    @property
    def _is_proving(self) -> bool:
        return self._proof != 0 and self._clock() < self._proof_until

    def leave(self, ticket: int) -> None:
        """Note that a request ended; one that said nothing of the engine leaves the proof to another."""
        if ticket == self._proof:
            self._proof = 0

    def began(self, ticket: int) -> None:
        """Note that the engine begins to answer a request."""
        if ticket > self._before:
            self._opened_at, self._proof = None, 0

    def succeeded(self, ticket: int) -> None:
        """Note that the engine answered a request to its end."""
        if ticket > self._before:
            self.reset()

    def reset(self) -> None:
        """Forget what failed."""
        self._failures, self._opened_at, self._seconds, self._proof = 0, None, FIRST_SECONDS, 0

    def failed(self, ticket: int) -> None:
        """Note that the engine failed on a request."""
        if ticket <= self._before:
            return
        self._failures += 1
        if self._failures < FAILURES:
            return
        if self._failures > FAILURES:
            self._seconds = min(2 * self._seconds, LONGEST_SECONDS)
        self._opened_at, self._proof, self._before = self._clock(), 0, self._tickets
