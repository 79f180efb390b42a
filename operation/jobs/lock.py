"""Keeps a SQLite database in its place while periodic work is done on it.

A database that were put in its place meanwhile would be theirs from their next connection on, with secrets of another
time. Whoever does periodic work therefore shares a lock on a file beside the
database's, which a restore takes for itself alone. On PostgreSQL a restore sees their sessions.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class JobsLockedError(RuntimeError):
    """The lock is taken by others; the message says by whom, and what to do."""


class JobsLock:
    """A lock that is held until `release` or the process's end, that of its forks included."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def share(cls, database: Path) -> JobsLock:
        """Take the lock as one of those who do periodic work; raise JobsLockedError while a restore has it."""
        path = database.resolve()
        return cls(_locked(path, fcntl.LOCK_SH, f"{path} is being restored: start jobs once that is over"))

    @classmethod
    def take(cls, database: Path) -> JobsLock:
        """Take the lock alone; raise JobsLockedError while anybody does periodic work on the database."""
        path = database.resolve()
        message = f"{path} is in use by jobs (`manage.py jobs`, `serve` or Celery's worker): stop them first"
        return cls(_locked(path, fcntl.LOCK_EX, message))

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def _locked(database: Path, kind: int, refusal: str) -> int:
    descriptor = os.open(f"{database}.jobs-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JobsLockedError(refusal) from None
    return descriptor
