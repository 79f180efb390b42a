"""An operation in the writer's queue: its deadline, its errors, and its turn where others hold its wallet's lock."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from billing.writer.operations import LEASE_SECONDS, Answer, Extend, Operation, Renew, Repin, Reserve


class WriterError(Exception):
    """The operation could not be applied and changed nothing, unless the message says that the outcome is unknown."""


class WriterBusyError(WriterError):
    """The writer is behind, its database is unreachable, or the wallet stays locked: try again shortly."""


class WriterClosedError(WriterError):
    """The writer was closed before it could answer; an operation that was in flight may have been applied."""


class ConflictError(Exception):
    """Another transaction was in the way; nothing was applied and the same flush may be sent again."""


class BusyError(ConflictError):
    """Another process has locked the whole database (SQLite): a smaller flush would conflict as well."""


class OutcomeUnknownError(Exception):
    """The connection was lost before the answer: only sending the same operations again tells whether they were
    applied.
    """


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


class Deadlines:
    """Fails entries that have no answer at their deadline, with one timer for all: nearly all are answered long before.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Entry) -> None:
        """Fail `entry` at its deadline unless it has its answer then."""
        entries = self._entries
        while entries and entries[0].future.done():
            entries.popleft()
        entries.append(entry)
        if self._timer is None or entry.deadline < self._timer.when():
            self._look_at(entry.deadline)

    def close(self) -> None:
        """Fail nothing any more."""
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for entry in self._entries:
            if entry.deadline <= now:
                entry.be_late()
        self._entries = deque(entry for entry in self._entries if not entry.future.done())
        if self._entries:
            self._look_at(min(entry.deadline for entry in self._entries))


FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.050  # seconds
SKIPS_BEFORE_TURN = 3
TURN_INTERVAL = 0.5
"""Seconds. A turn lasts at most as long as the connection's lock timeout, 0.1 s: a fifth of the other wallets' time."""


@dataclass(slots=True)
class Waiting:
    """The entries that wait for one wallet's lock, in order; `due_at` is on the monotonic clock."""

    entries: deque[Entry] = field(default_factory=deque)
    skips: int = 0
    due_at: float = 0.0


class LockedWallets:
    """The wallets that another transaction had locked, each with its entries, which wait apart from the queue and delay
    no other wallet; under None those that lock no wallet.

    A wallet's operations keep their order, so none overtakes an earlier one of the same request. They are tried again
    with growing pauses, and skipped again while the lock is taken. After some skips a wallet gets a turn: its
    operations queue in the database for the lock, since otherwise a gateway that locks a busy wallet again and again
    would starve another. That blocks the writer's connection meanwhile, so it is done for one wallet at a time, and
    rarely.
    """

    def __init__(self) -> None:
        self._waiting: dict[UUID | None, Waiting] = {}
        self._next_turn_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def entries(self) -> list[Entry]:
        """Everything that waits."""
        return [entry for waiting in self._waiting.values() for entry in waiting.entries]

    @property
    def due_at(self) -> float:
        """When the next wallet may be tried again, on the monotonic clock."""
        return min(waiting.due_at for waiting in self._waiting.values())

    def add_behind(self, entry: Entry) -> bool:
        """Queue an entry behind those that wait for the same wallet; False, changing nothing, if none does."""
        waiting = self._waiting.get(entry.wallet) if self._waiting else None
        if waiting is None:
            return False
        entry.skips = max(entry.skips, 1)
        waiting.entries.append(entry)
        return True

    def put_back(self, entries: list[Entry]) -> None:
        """Put back entries, in order, that were tried and found their lock taken, and delay the next try."""
        now = time.monotonic()
        found: dict[UUID | None, list[Entry]] = {}
        for entry in entries:
            found.setdefault(entry.wallet, []).append(entry)
        for wallet, mine in found.items():
            waiting = self._waiting.setdefault(wallet, Waiting())
            waiting.entries.extendleft(reversed(mine))
            waiting.skips = max(entry.skips for entry in mine)
            waiting.due_at = now + min(FIRST_PAUSE * 2 ** min(waiting.skips, 10), LONGEST_PAUSE)

    def take_due(self) -> list[Entry]:
        """Take out and return, in order, the entries of the wallets that may be tried again now."""
        now = time.monotonic()
        due = [wallet for wallet, waiting in self._waiting.items() if waiting.due_at <= now]
        return [entry for wallet in due for entry in self._waiting.pop(wallet).entries]

    def take_turn(self) -> list[Entry]:
        """Take out and return the entries of the wallet whose turn it is to queue for its lock; mostly none."""
        now = time.monotonic()
        if not self._waiting or now < self._next_turn_at:
            return []
        wallet, waiting = max(self._waiting.items(), key=lambda item: item[1].skips)
        if waiting.skips < SKIPS_BEFORE_TURN:
            return []
        self._next_turn_at = now + TURN_INTERVAL
        return list(self._waiting.pop(wallet).entries)

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
