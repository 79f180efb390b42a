"""The writer's queue: the operations that arrived while one flush ran make up the next (group commit)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from uuid import UUID

from billing.writer.driver import Driver
from billing.writer.entry import (
    BusyError,
    ConflictError,
    Deadlines,
    Entry,
    LockedWallets,
    OutcomeUnknownError,
    WriterBusyError,
    WriterClosedError,
    WriterError,
)
from billing.writer.operations import Answer, EndFacts, Held, Locked, Operation, Release, Reserve

MAX_FLUSH = 256
MAX_QUEUE = 2048
CONFLICT_TRIES = 3
CONFLICT_JITTER = 0.010
RECONNECT_FIRST, RECONNECT_LAST = 0.020, 0.500
CLOSE_SECONDS = 5.0
SETTLE_SECONDS = 5.0
"""How long an operation other than a reserve is tried again whose wallet another transaction has locked, before its
caller gets a WriterBusyError."""
logger = logging.getLogger("billing.writer")


class Writer:
    """Applies operations in groups over one connection, in the order they came. Belongs to one event loop.

    One flush is in flight at a time; a request is at most once in a flush. There is no timer: the next flush begins
    when the last one has committed. Operations whose wallet another transaction has locked wait beside the queue and
    delay no others.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._queue: deque[Entry] = deque()
        self._locked = LockedWallets()
        self._deadlines = Deadlines()
        self._in_flight: list[Entry] = []
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._is_closing = False
        self._give_up_at: float | None = None
        self.flushes = 0
        self.operations = 0

    @property
    def oldest_age(self) -> float:
        """Seconds for which the oldest operation without an answer has waited; 0 when none does.

        Operations that wait for another transaction's lock don't count: the writer is not behind for that.
        """
        oldest = 0.0
        for part in (self._in_flight, self._queue):
            for entry in part:
                if not entry.skips:
                    oldest = max(oldest, entry.age)
                    break
        return oldest

    @property
    def waiting(self) -> int:
        """How many operations have no answer yet."""
        return len(self._queue) + len(self._in_flight) + len(self._locked.entries)

    @property
    def is_behind(self) -> bool:
        """True while new reserves are refused; readiness reports it."""
        return len(self._queue) >= MAX_QUEUE or self.oldest_age > self._driver.max_age

    async def submit(self, operation: Operation, seconds: float | None = None) -> Answer:
        """Return the answer to `operation`, after the commit that made it true.

        Raises WriterBusyError when the writer is behind (reserves only, at once or after `reserve_timeout`) or its
        wallet stays locked, TimeoutError when another operation has no answer after `seconds`, WriterClosedError after
        `close`, WriterError when the operation can't be applied. When the caller is cancelled or times out, the
        operation may still be applied; what a reserve then holds is released.
        """
        if self._is_closing:
            raise WriterClosedError("the writer is closed")
        if not isinstance(operation, Reserve):
            return await self._enter(operation, seconds).future
        if self.is_behind:
            raise WriterBusyError(f"{len(self._queue)} operations wait, the oldest for {self.oldest_age:.3f} s")
        entry = self._enter(operation, self._driver.reserve_timeout)
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._abandon(entry)
            raise

    async def close(self) -> None:
        """Apply what is queued, for at most 5 s, and close the connection; the rest fails with a WriterClosedError."""
        if self._is_closing:
            return
        self._is_closing = True
        self._give_up_at = time.monotonic() + CLOSE_SECONDS
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
            if not self._task.done():
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
        for entry in (*self._in_flight, *self._locked.entries, *self._queue):
            entry.fail(WriterClosedError("the writer was closed; whether this was applied is unknown"))
        self._queue.clear()
        self._locked.clear()
        self._deadlines.close()
        await self._driver.close()

    def _enter(self, operation: Operation, seconds: float | None = None) -> Entry:
        loop = asyncio.get_running_loop()
        entry = Entry(operation, loop.create_future())
        if seconds is not None:
            entry.deadline = loop.time() + seconds
            self._deadlines.add(entry)
        self._queue.append(entry)
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return entry

    async def _run(self) -> None:
        while self._queue or self._locked:
            self._arrived.clear()
            turn = deque(self._locked.take_turn())
            has_turn = bool(turn)
            self._queue.extendleft(reversed(self._locked.take_due()))
            batch = self._next_batch(turn if has_turn else self._queue)
            self._queue.extendleft(reversed(turn))
            if batch:
                self._in_flight = batch
                await self._apply(batch, tries=CONFLICT_TRIES, waits=has_turn)
                self._in_flight = []
                if self._queue and self._driver.rest:
                    await asyncio.sleep(self._driver.rest)
            elif self._locked:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(self._locked.due_at - time.monotonic(), 0)):
                        await self._arrived.wait()

    def _next_batch(self, source: deque[Entry]) -> list[Entry]:
        """Take up to MAX_FLUSH entries in order; a second one of the same request stays in the queue, in its place.

        An entry whose wallet others already wait for goes behind them.
        """
        batch: list[Entry] = []
        stays: list[Entry] = []
        seen: set[UUID] = set()
        while source and len(batch) < MAX_FLUSH:
            entry = source.popleft()
            if entry.is_obsolete:
                entry.be_late()
                continue
            if self._locked.add_behind(entry):
                continue
            request = entry.request
            (stays if request in seen else batch).append(entry)
            if request is not None:
                seen.add(request)
        source.extendleft(reversed(stays))
        return batch

    async def _apply(self, batch: list[Entry], tries: int, *, waits: bool = False) -> None:
        """Answer every entry of the batch; what can't be applied fails alone, found by halving."""
        if not batch:
            return
        try:
            answers = await self._flush(batch, 0 if waits else tries, waits=waits)
        except BusyError as error:
            self._postpone(batch, error)
            return
        except ConflictError as error:
            if waits or len(batch) == 1:
                self._postpone(batch, error)
                return
        except WriterClosedError as error:
            for entry in batch:
                entry.fail(error)
            return
        except Exception as error:
            if len(batch) == 1:
                logger.exception("cannot apply %s", type(batch[0].operation).__name__)
                batch[0].fail(WriterError(f"cannot apply: {error}"))
                return
        else:
            self.flushes += 1
            self._deliver(batch, answers)
            return
        middle = len(batch) // 2
        await self._apply(batch[:middle], tries=0)
        await self._apply(batch[middle:], tries=0)

    async def _flush(self, batch: list[Entry], tries: int, *, waits: bool) -> list[Answer | Locked]:
        """Apply the batch as one flush: again after conflicts, and by the same ids after an unknown outcome.

        The answers are those to the batch as it is afterwards: forgotten reserves have been taken out.
        """
        pause = RECONNECT_FIRST
        while True:
            try:
                return await self._send(batch, waits=waits)
            except ConflictError:
                if not tries:
                    raise
                tries -= 1
                await asyncio.sleep(random.random() * CONFLICT_JITTER)
            except OutcomeUnknownError as error:
                if self._give_up_at is not None and time.monotonic() > self._give_up_at:
                    raise WriterClosedError(f"closed with an unknown outcome: {error}") from error
                logger.warning("flush of %d operations: %s", len(batch), error)
                for entry in batch:
                    entry.is_outcome_unknown = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, RECONNECT_LAST)
                self._forget_what_is_too_old(batch)
                if not batch:
                    return []

    async def _send(self, batch: list[Entry], *, waits: bool) -> list[Answer | Locked]:
        """Return the driver's answers. The outcome is unknown, too, if a reserve that is sent again has no answer while
        the hold of its first sending can't have been swept.
        """
        operations = [entry.operation for entry in batch]
        seconds = min((entry.seconds_to_resend for entry in batch if entry.is_resent_reserve), default=None)
        if seconds is None:
            return await self._driver.flush(operations, waits=waits)
        try:
            async with asyncio.timeout(seconds):
                return await self._driver.flush(operations, waits=waits)
        except TimeoutError as error:
            raise OutcomeUnknownError("a reserve was sent again, and not answered while its hold stands") from error

    def _forget_what_is_too_old(self, batch: list[Entry]) -> None:
        """Take out of the batch what must not be sent again, and tell its callers that there was no answer."""
        for entry in [entry for entry in batch if entry.is_too_old_to_resend]:
            batch.remove(entry)
            entry.be_late()

    def _deliver(self, batch: list[Entry], answers: list[Answer | Locked]) -> None:
        skipped: list[Entry] = []
        for entry, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Locked):
                skipped.append(entry)
                continue
            self.operations += 1
            if entry.future.done():
                self._release(entry, answer)
            else:
                entry.future.set_result(answer)
        if skipped:
            self._postpone(skipped, ConflictError("another transaction has locked it"))

    def _postpone(self, entries: list[Entry], error: ConflictError) -> None:
        """Let entries, in order, wait for their wallet's lock; those that waited too long fail with WriterBusyError."""
        waiting = []
        for entry in entries:
            is_reserve = isinstance(entry.operation, Reserve)
            limit = self._driver.reserve_timeout if is_reserve else max(SETTLE_SECONDS, self._driver.max_age)
            if entry.age > limit:
                entry.fail(WriterBusyError(f"the wallet stays locked: {error}"))
                if not (is_reserve and entry.is_outcome_unknown):
                    continue  # it may hold credit: it is sent until the answer shows what to release
            entry.skips += 1
            waiting.append(entry)
        self._locked.put_back(waiting)

    def _abandon(self, entry: Entry) -> None:
        """Release what a reserve holds whose caller left in the same turn of the loop in which it was answered."""
        if entry.future.done() and not entry.future.cancelled() and entry.future.exception() is None:
            self._release(entry, entry.future.result())

    def _release(self, entry: Entry, answer: Answer) -> None:
        """Release what an answered reserve holds, since its caller has left."""
        if isinstance(entry.operation, Reserve) and isinstance(answer, Held):
            abandoned = entry.operation
            released = self._enter(Release(abandoned.request, abandoned.wallet, EndFacts("abandoned")))
            released.future.add_done_callback(_retrieve_error)


def _retrieve_error(done: asyncio.Future[Answer]) -> None:
    """Mark the future's error as retrieved: nobody awaits it, and the writer has logged it."""
    if not done.cancelled():
        done.exception()
