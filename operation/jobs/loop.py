"""Periodic work in one process: what is due, in a few threads, until it is told to end.

Where nobody has written to the database there is nothing new to do but by time, which `IDLE_S` is soon enough for.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from base.database.threads import ThreadConnections
from base.heartbeat import touch_heartbeat
from billing.jobs import Job
from operation.jobs.tasks import task


class Schedule:
    """When each job is due: at once, and then so many seconds after it was last taken, or when that run has ended."""

    def __init__(self, jobs: Sequence[Job], now: float) -> None:
        self._every = {job.name: job.every_s for job in jobs}
        self._due = dict.fromkeys(self._every, now)
        self._taken: dict[str, float] = {}

    def take(self, now: float) -> list[str]:
        """Return the names of the jobs that are due, the longest first; none of them is due until it has ended."""
        names = sorted((name for name, due in self._due.items() if due <= now), key=self._due.__getitem__)
        for name in names:
            del self._due[name]
            self._taken[name] = now
        return names

    def end(self, name: str) -> None:
        """Note that a job that was taken has ended."""
        self._due[name] = self._taken.pop(name) + self._every[name]

    def rest(self, now: float) -> float | None:
        """Return for how many seconds nothing is due; None while all have been taken."""
        return max(0.0, min(self._due.values()) - now) if self._due else None


IDLE_S = 30.0
"""Seconds after which a job runs although nobody has written to the database since it began last."""


class FileVersion:
    """The version of an SQLite file: another one after each commit. None where it can't be read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._openings = 0

    def __call__(self) -> object:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, isolation_level=None)
                self._openings += 1  # each connection counts for itself
            [version] = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            self.close()
            return None
        return self._openings, version

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Loop:
    """Runs the jobs in so many `threads`, none of them twice at a time, until `stop`.

    `version` tells whether anybody has written to the database: another value then, None where that isn't known.
    """

    def __init__(self, jobs: Sequence[Job], threads: int, version: Callable[[], object] = lambda: None) -> None:
        self._tasks = {job.name: task(job, lambda: not self._stops) for job in jobs}
        self._schedule = Schedule(jobs, time.monotonic())
        self._threads = threads
        self._version = version
        self._began: dict[str, tuple[object, float]] = {}  # by job: the version, and when it began last
        self._connections = ThreadConnections()
        self._stops = False
        self._news: SimpleQueue[str | None] = SimpleQueue()  # names of jobs that have ended; None: look whether to stop

    def stop(self) -> None:
        """Let `run` return after the current chunks. A signal's handler may call it."""
        self._stops = True
        self._news.put(None)

    def run(self) -> None:
        """Do what is due until `stop`."""
        pool = ThreadPoolExecutor(self._threads, "job")
        try:
            while not self._stops:
                now, version = time.monotonic(), self._version()
                for name in self._schedule.take(now):
                    before, began = self._began.get(name, (None, now))
                    if version is not None and version == before and now - began < IDLE_S:
                        self._schedule.end(name)
                        touch_heartbeat()
                    else:
                        self._began[name] = version, now
                        pool.submit(self._do, name)
                with suppress(Empty):
                    ended = self._news.get(timeout=self._schedule.rest(time.monotonic()))
                    if ended is not None:
                        self._schedule.end(ended)
        finally:
            pool.shutdown(cancel_futures=True)
            self._connections.close()

    def _do(self, name: str) -> None:
        try:
            if not (self._stops or self._tasks[name]()):
                self._began.pop(name, None)  # it failed, or rests after it did: there is still something to do
        finally:
            try:
                self._connections.rest()
            finally:
                self._news.put(name)  # else it would never be due again
