"""The places at one endpoint: so many requests run there, the others wait in the gateway's own fair queue.

A place that gets free goes to the tenant that has had the least weighted service at this endpoint (weighted virtual
token counters, as in our own scheduler), not to whoever came first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from inference.core.fairness import Prices
from inference.core.waiting import YIELDED, WaitingQueue
from inference.errors import OverloadedError
from inference.types import Usage


@dataclass(eq=False, slots=True)
class Ticket:
    """One request for a place; `charged` is the service of it that its tenant's counter has.

    One that `is_part` of a request that runs already may always wait, however many do.
    """

    tenant: str
    weight: int
    band: int = 0
    priority: int = 0
    is_part: bool = False
    place: asyncio.Future[None] | None = None  # set while it waits
    charged: Usage = field(default_factory=Usage)

    @property
    def may_yield(self) -> bool:
        """Whether it may be refused though it waits: nothing of it has run, and it is not about to leave."""
        return self.place is not None and not self.place.done()


class Places:
    """At most `most` requests run; others wait in the fair queue, bounded as `bound` says."""

    def __init__(self, most: int, waiting: int) -> None:
        self.running = 0
        self._waiting: WaitingQueue[Ticket] = WaitingQueue(waiting, waiting, Prices())
        self.bound(most, waiting)

    def bound(self, most: int, waiting: int) -> None:
        """Let `most` run and `waiting` more wait from now on, half of them of one tenant."""
        self.most = most
        self._waiting.most = waiting
        self._waiting.most_per_tenant = max(1, waiting // 2)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting.queue)

    def take_free(self, ticket: Ticket) -> bool:
        """Give `ticket` a place if one is free and nobody waits; False otherwise, and nothing has happened."""
        if self.running >= self.most or self.waiting:
            return False
        self._waiting.pass_through(ticket)
        self.running += 1
        return True

    async def take(self, ticket: Ticket, seconds: float) -> None:
        """Return once `ticket` has a place; raise `OverloadedError` when too many wait or none came in time."""
        ticket.place = asyncio.get_running_loop().create_future()
        yielding = self._waiting.enter(ticket, bounded=not ticket.is_part)
        if yielding is not None and yielding.place is not None:
            yielding.place.set_exception(OverloadedError(YIELDED))  # then it gives its waiting back
        try:
            self._let_in()
            async with asyncio.timeout(seconds):
                await ticket.place
        except BaseException as error:
            self.give_back(ticket)
            if isinstance(error, TimeoutError):
                raise OverloadedError("The engine is busy: no place became free in time.") from None
            raise

    def give_back(self, ticket: Ticket) -> None:
        """Give up the place of `ticket`, or its waiting for one."""
        if not self._waiting.queue.remove(ticket):
            self.running -= 1
        self._waiting.leave(ticket)
        if self.waiting:
            self._let_in()

    def served(self, ticket: Ticket, usage: Usage) -> None:
        """Charge its tenant's counter with what `ticket` got since the last call."""
        before, ticket.charged = ticket.charged, usage
        self._waiting.queue.charge(
            ticket.tenant,
            prompt=usage.input - before.input,
            cached=usage.cache_read - before.cache_read,
            output=usage.completion - before.completion,
        )

    def _let_in(self) -> None:
        while self.running < self.most and (ticket := self._waiting.queue.peek()) is not None:
            self._waiting.queue.remove(ticket)
            self.running += 1
            if ticket.place is not None and not ticket.place.done():  # done: cancelled, and about to give it back
                ticket.place.set_result(None)
