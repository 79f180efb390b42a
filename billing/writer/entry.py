"""An operation on its way through the writer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from uuid import UUID

from billing.writer.operations import Answer, Extend, Operation, Renew, Reserve

FORGET_SECONDS = 20.0
"""A reserve of unknown outcome is not sent again after this long: its hold's lease may be over, its hold swept and
closed, and a second hold under a closed id could never be closed. If there is a hold, the sweep finds it."""


@dataclass(slots=True, eq=False)
class Entry:
    """An operation that waits for its answer."""

    operation: Operation
    future: asyncio.Future[Answer]
    queued_at: float = field(default_factory=time.monotonic)
    skips: int = 0  # how often its lock was somebody else's
    is_unsure: bool = False  # it was sent, and the outcome is not known

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    @property
    def wallet(self) -> UUID | None:
        return None if isinstance(self.operation, Renew) else self.operation.wallet

    @property
    def request(self) -> UUID | None:
        """The request whose operations keep their order; None for what is about no single request."""
        return getattr(self.operation, "request", None)

    @property
    def age(self) -> float:
        return time.monotonic() - self.queued_at

    @property
    def is_pointless(self) -> bool:
        """True when nobody waits any more for what has not been started and need not be."""
        if self.is_unsure and isinstance(self.operation, Reserve):
            return self.is_forgotten
        return self.future.cancelled() and isinstance(self.operation, Reserve | Extend | Renew)

    @property
    def is_forgotten(self) -> bool:
        """True for a reserve that nobody waits for and that must not be asked again."""
        return self.age > FORGET_SECONDS and self.future.done() and isinstance(self.operation, Reserve)
