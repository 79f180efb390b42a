"""A circuit breaker: an engine that fails several tenants gets no requests for a while, then one a second as a proof.

closed ── FAILURES in a row, of TENANTS ──▶ open ── the wait is over ──▶ half-open ── a request ends well ──▶ closed
                                             ▲                              │
                                             └─ TENANTS fail: twice the wait ┘

What fails one tenant may be that tenant's own doing (a prompt, a schema, an adapter), so it takes the engine from
nobody else, neither when the circuit is closed nor as a proof. Whether an engine can be reached at all is for its
health to say.

A proof that begins to answer lets others in beside it, since a long answer would keep them out for minutes; but only
one that ends well clears what failed before. One that doesn't begin at once may wait for its own tenant's sake, or in a
queue, and is joined by another after PROOF_SECONDS. Each request has a ticket: one sent before the circuit last opened
says nothing of the engine as it is now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

FAILURES = 3
TENANTS = 2
FIRST_SECONDS = 5.0
LONGEST_SECONDS = 60.0
PROOF_SECONDS = 1.0  # for which nobody else is sent where a request proves the engine


class Ticket(NamedTuple):
    """One tenant's request at one engine."""

    number: int
    tenant: UUID


class Breaker:
    """One engine's circuit. What a client did wrong, and what the engine declined for lack of room, is no failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0  # since the last request that ended well
        self._failed: set[UUID] = set()  # the tenants that failed since then, or since it opened
        self._opened_at: float | None = None
        self._seconds = 0.0  # of its last wait; 0 while it is closed
        self._tickets = 0
        self._before = 0  # the last ticket of before it opened
        self._proof = 0  # the ticket of the latest request that proves it; 0 for none
        self._proof_until = 0.0

    @property
    def state(self) -> str:
        """One of "closed", "open" and "half-open"."""
        if not self._seconds:
            return "closed"
        return "half-open" if self._rest <= 0 else "open"

    @property
    def _rest(self) -> float:
        """How many seconds of its wait are left."""
        return 0.0 if self._opened_at is None else self._opened_at + self._seconds - self._clock()

    @property
    def obstacle(self) -> str:
        """Why no request may be sent now; empty when one may."""
        if (rest := self._rest) > 0:
            return f"circuit open after {self._failures} failures, next try in {rest:.0f} s"
        return "circuit half-open: a request is proving it" if self._is_proving else ""

    @property
    def remark(self) -> str:
        """A warning for operators about a replica that takes requests; empty without one."""
        if self.state != "half-open" or self._is_proving:
            return ""
        proves = "the next request proves it" if self._opened_at is not None else "no request has ended well yet"
        return f"circuit half-open after {self._failures} failures: {proves}"

    def enter(self, tenant: UUID) -> Ticket:
        """Return the ticket of a request that is sent now. Where the circuit waits for its proof, it is that, unless
        its tenant has failed one: whoever fails again and again would keep all others out.
        """
        self._tickets += 1
        if self._opened_at is not None and not self._is_proving and tenant not in self._failed:
            self._proof, self._proof_until = self._tickets, self._clock() + PROOF_SECONDS
        return Ticket(self._tickets, tenant)

    @property
    def _is_proving(self) -> bool:
        return self._proof != 0 and self._clock() < self._proof_until

    def leave(self, ticket: Ticket) -> None:
        """Note that a request ended; one that said nothing of the engine leaves the proof to another."""
        if ticket.number == self._proof:
            self._proof = 0

    def began(self, ticket: Ticket) -> None:
        """Note that the engine begins to answer a request."""
        if ticket.number > self._before:
            self._opened_at, self._proof = None, 0

    def succeeded(self, ticket: Ticket) -> None:
        """Note that the engine answered a request to its end."""
        if ticket.number > self._before:
            self.reset()

    def reset(self) -> None:
        """Forget what failed."""
        self._failures, self._opened_at, self._seconds, self._proof = 0, None, 0.0, 0
        self._failed.clear()

    def failed(self, ticket: Ticket) -> None:
        """Note that the engine failed on a request."""
        if ticket.number <= self._before:
            return
        self._failures += 1
        self._failed.add(ticket.tenant)
        if self._failures < FAILURES or len(self._failed) < TENANTS:
            return
        self._seconds = min(2 * self._seconds or FIRST_SECONDS, LONGEST_SECONDS)
        self._opened_at, self._proof, self._before = self._clock(), 0, self._tickets
        self._failed.clear()
