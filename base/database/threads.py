"""The threads on which the data plane's few ORM reads run, away from the event loop and from Django's own threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from uuid import UUID

from django.db import connections

from base.database.bounded_connection import answered_within
from base.errors import DatabaseBusyError
from base.fair_queue import FairQueue

MOST_WAITING = 256
SHARE = 4  # a tenant or user may have one in so many of these places
ANSWER_SECONDS = 5.0  # how long a connection that gets no answer can occupy a thread

T = TypeVar("T")


class DatabaseThreads:
    """A small pool of threads; a call gives its connection back (or closes it) before it returns.

    PostgreSQL has `ANSWER_SECONDS` for each statement; one that isn't answered then fails and frees its thread.

    At most `most` calls wait or run at once: thousands of guessed keys get errors instead of filling the gateway's
    memory and delaying other callers. At most a quarter of them are one tenant's or user's, where a call says whose it
    is; whose calls wait has them done in turn with the others'.
    """

    def __init__(self, size: int = 4, most: int = MOST_WAITING) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix="gateway-database")
        self._most = most
        self._waiting: FairQueue[UUID | None, Callable[[], None]] = FairQueue()
        self._inside = 0
        self._by_owner: Counter[UUID] = Counter()
        self._mutex = threading.Lock()

    @property
    def calls(self) -> int:
        """How many calls wait or run."""
        return self._inside

    async def run(self, function: Callable[[], T], *, owner: UUID | None = None) -> T:
        """Return `function()`, called on one of the threads; raise DatabaseBusyError when too many calls wait in
        all, or for the `owner`: the tenant, or the user, whose client asks.
        """
        with self._mutex:
            if self._inside >= self._most:
                raise DatabaseBusyError("Too much waits for the database right now.")
            if owner is not None:
                if self._by_owner[owner] >= max(1, self._most // SHARE):
                    raise DatabaseBusyError("Too many of your requests wait for the database right now.")
                self._by_owner[owner] += 1
            self._inside += 1
            work: Future[T] = Future()
            self._waiting.put(owner, partial(_do, function, work))
        # Not when the caller gives up: the call may still wait in the pool.
        work.add_done_callback(partial(self._leave, owner))
        self._executor.submit(self._next)
        return await asyncio.wrap_future(work)

    def _next(self) -> None:
        with self._mutex:
            call = self._waiting.get()
        call()

    def _leave(self, owner: UUID | None, _: object) -> None:
        with self._mutex:
            self._inside -= 1
            if owner is not None:
                self._by_owner[owner] -= 1
                if not self._by_owner[owner]:
                    del self._by_owner[owner]

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._executor.shutdown(wait=True)


def _do(function: Callable[[], T], work: Future[T]) -> None:
    """Have `function` answer `work`, unless its caller has given up."""
    if not work.set_running_or_notify_cancel():
        return
    try:
        work.set_result(_with_connections_closed(function))
    except BaseException as error:  # noqa: BLE001 - the caller's
        work.set_exception(error)


def _with_connections_closed(function: Callable[[], T]) -> T:
    try:
        with answered_within(ANSWER_SECONDS):
            return function()
    finally:
        connections.close_all()
