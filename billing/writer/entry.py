"""An operation in the writer's queue."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from uuid import UUID

from billing.writer.errors import WriterBusyError
from billing.writer.operations import LEASE_SECONDS, Answer, Extend, Operation, Renew, Repin, Reserve

RESEND_SECONDS = 20.0
"""Seconds after which a reserve of unknown outcome is not sent again: by then its hold may have been orphaned, swept
and closed, and a second hold under a closed id could never be closed. If the hold is there, the sweep closes it.
"""
RESEND_ENDS_SECONDS = LEASE_SECONDS - 2.0
"""Seconds after which one that was sent again is given up: connecting and reading its wallet may take longer than the
lease of the hold that its first sending left.
"""


@dataclass(slots=True, eq=False)
class Entry:
    """An operation and the future of its answer."""

    operation: Operation
    future: asyncio.Future[Answer]
    queued_at: float = field(default_factory=time.monotonic)
    skips: int = 0  # how often it was answered Locked
    is_outcome_unknown: bool = False  # sent, and the connection was lost before the answer
    deadline: float = math.inf  # on the loop's clock: so long its caller waits

    def fail(self, error: Exception) -> None:
        """Give the caller `error`, unless it has its answer or has left."""
        if not self.future.done():
            self.future.set_exception(error)

    def be_late(self) -> None:
        """Tell the caller that there was no answer in time; what a reserve then holds is released."""
        is_reserve = isinstance(self.operation, Reserve)
        self.fail(WriterBusyError(f"no answer in {self.age:.1f} s") if is_reserve else TimeoutError())

    @property
    def wallet(self) -> UUID | None:
        """The wallet that has to be locked; None for a Renew, which locks holds only."""
        return None if isinstance(self.operation, Renew) else self.operation.wallet

    @property
    def request(self) -> UUID | None:
        """The request whose operations keep their order; None for one about no single request."""
        return getattr(self.operation, "request", None)

    @property
    def age(self) -> float:
        """Seconds since it was queued."""
        return time.monotonic() - self.queued_at

    @property
    def is_obsolete(self) -> bool:
        """True when it must not be applied any more, or its caller has left and it need not be."""
        if self.is_resent_reserve:
            return self.is_too_old_to_resend
        return self.future.done() and isinstance(self.operation, Reserve | Extend | Repin | Renew)

    @property
    def is_too_old_to_resend(self) -> bool:
        """True for a reserve that was sent and must not be again (`RESEND_SECONDS`), though its caller may wait."""
        return self.is_resent_reserve and self.age > RESEND_SECONDS

    @property
    def is_resent_reserve(self) -> bool:
        """True for a reserve that was sent, perhaps applied, and not answered."""
        return self.is_outcome_unknown and isinstance(self.operation, Reserve)

    @property
    def seconds_to_resend(self) -> float:
        """How long its next flush may take, where it is a resent reserve."""
        return RESEND_ENDS_SECONDS - self.age
