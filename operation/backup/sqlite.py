"""SQLite's side of a backup: a snapshot beside running writers, and putting one in the database's place."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from gateway.runtime.gateway_lock import FileLock, GatewayRunningError
from operation.backup.archive import RESTORE, BackupError, place, work_folder
from operation.jobs_lock import JobsLock, JobsLockedError
from operation.setup.moved_home import UNFINISHED

MEMBER = "database.sqlite3"
_COMPANIONS = ("-wal", "-shm")


def dump(database: Path, target: Path) -> None:
    """Write the database as it is at one moment, whoever writes meanwhile."""
    address = f"{database.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(target)) as copy:
        # All pages in one step are one read transaction: in WAL mode no writer waits for it. In several steps each
        # commit of another process would begin the copy anew.
        source.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without companions


def has_tables(database: Path) -> bool:
    """Return whether there is a database with anything in it."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(database)) as connection:
            return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.DatabaseError as error:
        raise _unreadable(database, error) from error


@contextmanager
def alone(database: Path) -> Iterator[None]:
    """Within it no gateway or jobs begin on the database; raise BackupError while any of them runs."""
    with ExitStack() as held:
        try:
            held.callback(FileLock.take(database).release)
            held.callback(JobsLock.take(database).release)
        except (GatewayRunningError, JobsLockedError) as error:
            raise BackupError(f"{error} (a restore needs Sluice stopped)") from error
        except OSError as error:
            place = database.parent
            raise BackupError(f"{place}: {error.strerror}: make that folder, or correct DATABASE_URL") from error
        yield


def restore(dumped: Path, database: Path) -> Path | None:
    """Put the dump in the database's place, and return where the former one lies now, if there was one.

    Raises BackupError, nothing changed, while any process has the database open, or when the dump isn't sound.
    """
    with closing(sqlite3.connect(dumped)) as connection:
        [finding] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise BackupError(f"the database of the backup is damaged: {finding}")
    former = None
    if database.exists():
        _close(database)
        former = database.with_name(f"{database.name}.replaced-{int(database.stat().st_mtime)}-{os.getpid()}")
    with work_folder(database.parent, RESTORE) as folder:
        draft = folder / MEMBER
        shutil.copyfile(dumped, draft)
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute(f"CREATE TABLE {UNFINISHED} (begun)")
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        if former is not None:
            place(database, former)  # unlike a rename, it leaves no moment without a database
        draft.rename(database)
    _sync_folder(database.parent)
    return former


def _close(database: Path) -> None:
    """Fold the write-ahead log into the database's file; raise BackupError if anybody else has it open."""
    with closing(sqlite3.connect(database, timeout=2)) as connection:
        try:
            # Leaving WAL mode takes an exclusive lock, which every other open connection keeps us from.
            [mode] = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError as error:
            mode = str(error)
        except sqlite3.DatabaseError as error:
            raise _unreadable(database, error) from error
    if mode != "delete" or any(Path(f"{database}{suffix}").exists() for suffix in _COMPANIONS):
        raise BackupError(f"{database} is in use ({mode}): stop gateway, jobs and whatever else has it open")


def _unreadable(database: Path, error: sqlite3.DatabaseError) -> BackupError:
    """Return what to raise where the database is there and can't be used: nobody but the operator puts it away."""
    names = " and ".join(str(database) + suffix for suffix in ("", *_COMPANIONS))
    return BackupError(f"the database can't be read ({error}): if it is damaged, move {names} away first")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
