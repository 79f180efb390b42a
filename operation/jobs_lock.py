"""The lock of a SQLite database whose periodic work is under way. Imported where Django is not set up."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class JobsLockedError(RuntimeError):
    """The lock is taken by others; the message says by whom, and what to do."""


class JobsLock:
    """A lock beside a SQLite database, held until `release` or the process's end, that of its forks included.

    Periodic work shares it and a restore takes it alone: a database that were put in its place meanwhile would be the
    work's from the next connection on, with secrets of another time. On PostgreSQL a restore sees their sessions.
    """

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
