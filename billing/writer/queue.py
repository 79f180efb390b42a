"""The writer's queue: everything that waited while the last commit ran goes into the next flush."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from billing.writer.decide import PutAside
from billing.writer.driver import Driver
from billing.writer.errors import ConflictError, LostError, WriterBusyError, WriterClosedError, WriterError
from billing.writer.operations import Answer, Extend, Held, Operation, Release, Renew, Reserve
from billing.writer.state import requests_of

LARGEST_FLUSH = 256
LONGEST_QUEUE = 2048
CONFLICT_TRIES = 3
CONFLICT_JITTER = 0.010
RECONNECT_FIRST, RECONNECT_LAST = 0.020, 0.500
CLOSE_SECONDS = 5.0
SETTLE_SECONDS = 5.0
"""How long an operation whose wallet somebody else holds is tried again before its caller is told."""
FORGET_SECONDS = 20.0
"""A reserve of unknown outcome is not sent again after this long: its hold's lease may be over, its hold swept and
closed, and a second hold under a closed id could never be closed. If there is a hold, the sweep finds it."""

logger = logging.getLogger("billing.writer")


@dataclass(slots=True, eq=False)
class Entry:
    """An operation that waits for its answer."""

    operation: Operation
    future: asyncio.Future[Answer]
    queued_at: float = field(default_factory=time.monotonic)
    is_rolled: bool = False

    def answer(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    @property
    def is_pointless(self) -> bool:
        """True when nobody waits any more for what has not been started and need not be."""
        return self.future.cancelled() and isinstance(self.operation, Reserve | Extend | Renew)

    @property
    def is_forgotten(self) -> bool:
        """True for a reserve that nobody waits for and that must not be asked again."""
        is_old = time.monotonic() - self.queued_at > FORGET_SECONDS
        return is_old and self.future.done() and isinstance(self.operation, Reserve)


class Writer:
    """Applies operations in groups over one connection, in the order they came. Belongs to one event loop.

    One flush is in flight at a time; a request is at most once in a flush. There is no timer: the commit in flight is
    the clock.
    """

    def __init__(self, driver: Driver, roll: Callable[[UUID], None]) -> None:
        self._driver = driver
        self._roll = roll
        self._queue: deque[Entry] = deque()
        self._in_flight: list[Entry] = []
        self._task: asyncio.Task[None] | None = None
        self._rolling: dict[UUID, asyncio.Task[None]] = {}
        self._is_closing = False
        self._give_up_at: float | None = None
        self.flushes = 0
        self.operations = 0

    @property
    def oldest_age(self) -> float:
        """Seconds for which the oldest operation without an answer has waited; 0 when none does."""
        entries = (self._in_flight[:1], self._queue and [self._queue[0]])
        since = [entry.queued_at for part in entries if part for entry in part]
        return time.monotonic() - min(since) if since else 0.0

    @property
    def is_behind(self) -> bool:
        """True while reserves are refused: readiness says so too."""
        return len(self._queue) >= LONGEST_QUEUE or self.oldest_age > self._driver.patience

    async def submit(self, operation: Operation) -> Answer:
        """Return the answer to `operation`, after the commit that made it true.

        Raises WriterBusyError when the writer is behind (reserves only, at once or after `reserve_wait`) or its
        wallet stays locked, WriterClosedError after `close`, WriterError when the operation can't be applied. A
        caller that is cancelled leaves the operation to its fate, except that a reserve which then turns out to hold
        is released.
        """
        if self._is_closing:
            raise WriterClosedError("the writer is closed")
        if isinstance(operation, Reserve) and self.is_behind:
            raise WriterBusyError(f"{len(self._queue)} operations wait, the oldest for {self.oldest_age:.3f} s")
        entry = self._enter(operation)
        if not isinstance(operation, Reserve):
            return await entry.future
        try:
            async with asyncio.timeout(self._driver.reserve_wait):
                return await entry.future
        except TimeoutError:
            raise WriterBusyError(f"no answer in {self._driver.reserve_wait} s") from None

    async def close(self) -> None:
        """Apply what waits, for at most 5 s, and close the connection; whatever is left gets a WriterError."""
        if self._is_closing:
            return
        self._is_closing = True
        self._give_up_at = time.monotonic() + CLOSE_SECONDS
        for task in self._rolling.values():
            task.cancel()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
            if not self._task.done():
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
        for entry in (*self._in_flight, *self._queue):
            entry.fail(WriterClosedError("the writer was closed; whether this was applied is unknown"))
        self._queue.clear()
        await self._driver.close()

    def _enter(self, operation: Operation) -> Entry:
        entry = Entry(operation, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self._wake()
        return entry

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while batch := self._next_batch():
            self._in_flight = batch
            await self._apply(batch, tries=CONFLICT_TRIES)
            self._in_flight = []
            if self._queue and self._driver.rest:
                await asyncio.sleep(self._driver.rest)

    def _next_batch(self) -> list[Entry]:
        """Take up to 256 entries in order; one whose request is already among those before it stays, in its place."""
        batch: list[Entry] = []
        stays: list[Entry] = []
        seen: set[UUID] = set()
        while self._queue and len(batch) < LARGEST_FLUSH:
            entry = self._queue.popleft()
            if entry.is_pointless:
                continue
            requests = requests_of(entry.operation)
            (batch if seen.isdisjoint(requests) else stays).append(entry)
            seen.update(requests)
        self._queue.extendleft(reversed(stays))
        return batch

    async def _apply(self, batch: list[Entry], tries: int) -> None:
        """Answer every entry of the batch; what can't be applied fails alone, found by halving."""
        if not batch:
            return
        try:
            answers = await self._flush(batch, tries)
        except ConflictError as error:
            if len(batch) == 1:
                self._postpone(batch[0], error)
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
            self.operations += len(batch)
            for entry, answer in zip(batch, answers, strict=True):
                self._deliver(entry, answer)
            return
        middle = len(batch) // 2
        await self._apply(batch[:middle], tries=0)
        await self._apply(batch[middle:], tries=0)

    async def _flush(self, batch: list[Entry], tries: int) -> list[Answer | PutAside]:
        """Apply the batch as one flush: again after conflicts, and by the same ids after an unknown outcome.

        The answers are those to the batch as it is afterwards: forgotten reserves have been taken out.
        """
        rolled = {request for entry in batch if entry.is_rolled for request in requests_of(entry.operation)}
        pause = RECONNECT_FIRST
        while True:
            operations = [entry.operation for entry in batch]
            try:
                return await self._driver.flush(operations, rolled)
            except ConflictError:
                if not tries:
                    raise
                tries -= 1
                await asyncio.sleep(random.random() * CONFLICT_JITTER)
            except LostError as error:
                if self._give_up_at is not None and time.monotonic() > self._give_up_at:
                    raise WriterClosedError(f"closed with an unknown outcome: {error}") from error
                logger.warning("flush of %d operations: %s", len(batch), error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RECONNECT_LAST)
                batch[:] = [entry for entry in batch if not entry.is_forgotten]

    def _deliver(self, entry: Entry, answer: Answer | PutAside) -> None:
        if isinstance(answer, PutAside):
            self._put_aside(entry, answer.wallet)
        elif entry.future.cancelled() and isinstance(entry.operation, Reserve) and isinstance(answer, Held):
            abandoned = entry.operation
            released = self._enter(Release(abandoned.request, abandoned.wallet, {"finish": "abandoned"}))
            released.future.add_done_callback(_consume)
        else:
            entry.answer(answer)

    def _postpone(self, entry: Entry, error: ConflictError) -> None:
        """Put an entry whose wallet somebody holds behind the others, until its patience is over."""
        is_reserve = isinstance(entry.operation, Reserve)
        limit = self._driver.reserve_wait if is_reserve else max(SETTLE_SECONDS, self._driver.patience)
        if time.monotonic() - entry.queued_at > limit:
            entry.fail(WriterBusyError(f"the wallet stays locked: {error}"))
        else:
            self._queue.append(entry)

    def _put_aside(self, entry: Entry, wallet: UUID) -> None:
        """Roll the wallet's grants in a transaction of their own, then queue the operation again."""
        task = self._rolling.get(wallet)
        if task is None:
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._roll, wallet))
            self._rolling[wallet] = task
            task.add_done_callback(lambda _: self._rolling.pop(wallet, None))
        task.add_done_callback(lambda done: self._requeue(entry, done))

    def _requeue(self, entry: Entry, rolled: asyncio.Task[None]) -> None:
        if rolled.cancelled():
            entry.fail(WriterClosedError("the writer was closed"))
        elif rolled.exception() is not None:
            logger.error("cannot roll a wallet's grants", exc_info=rolled.exception())
            entry.fail(WriterBusyError(f"cannot roll the wallet's grants: {rolled.exception()}"))
        else:
            entry.is_rolled = True
            self._queue.append(entry)
            self._wake()


def _consume(done: asyncio.Future[Answer]) -> None:
    """Look at the outcome that nobody awaits; the writer has logged what failed."""
    if not done.cancelled():
        done.exception()
