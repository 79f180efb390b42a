"""Threads of our own for the ORM: the data plane's few reads run there, away from event loop and Django's threads."""

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
from django.db.backends.base.base import BaseDatabaseWrapper

from base.database.bounded_connection import answered_within
from base.errors import DatabaseBusyError
from base.fair_queue import FairQueue

MOST_WAITING = 256
SHARE = 4  # a tenant or user may have one in so many of these places
ANSWER_SECONDS = 5.0  # how long a connection that gets no answer can occupy a thread

T = TypeVar("T")


class ThreadConnections:
    """The connections of a pool's threads between its calls: PostgreSQL's go back to theirs; SQLite's stay open, since
    opening one costs more than most queries.
    """

    def __init__(self) -> None:
        self._open: set[BaseDatabaseWrapper] = set()

    def rest(self) -> None:
        """Give back the connections of this thread, whose call has ended."""
        for one in connections.all(initialized_only=True):
            is_well = one.connection is not None and not one.errors_occurred and not one.in_atomic_block
            if is_well and one.vendor == "sqlite":
                self._open.add(one)
            else:
                self._open.discard(one)
                one.close()

    def close(self) -> None:
        """Close those that stayed open, once the threads have ended."""
        closer = threading.Thread(target=self._close)  # Django closes none in an event loop's thread
        closer.start()
        closer.join()

    def _close(self) -> None:
        for one in self._open:
            one.inc_thread_sharing()
            one.close()
        self._open.clear()


class DatabaseThreads:
    """A small pool of threads, whose connections rest between the calls (`ThreadConnections`).

    PostgreSQL has `ANSWER_SECONDS` for each statement; one that isn't answered then fails and frees its thread.

    At most `most` calls wait or run at once: thousands of guessed keys get errors instead of filling the gateway's
    memory and delaying other callers. At most a quarter of them are one tenant's or user's, where a call says whose it
    is; whose calls wait has them done in turn with the others'.
    """

    def __init__(self, size: int = 4, most: int = MOST_WAITING) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix="gateway-database")
        self._connections = ThreadConnections()
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
            self._waiting.put(owner, partial(self._do, function, work))
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
        self._connections.close()

    def _do(self, function: Callable[[], T], work: Future[T]) -> None:
        """Have `function` answer `work`, unless its caller has given up."""
        if not work.set_running_or_notify_cancel():
            return
        try:
            try:
                with answered_within(ANSWER_SECONDS):
                    found = function()
            finally:
                self._connections.rest()
        except BaseException as error:  # noqa: BLE001 - the caller's
            work.set_exception(error)
        else:
            work.set_result(found)
