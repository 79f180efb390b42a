"""A drill: a backup is restored beside the installation, its books are checked, and all of it is removed again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.db import DatabaseError, connection

from base.database.connections import without_limits
from base.environment import Environment
from base.home import FORGOTTEN_SECONDS
from operation.backup.archive import BackupError, work_folder

PREFIX, DATABASE = ".sluice-drill-", "sluice_drill_"
UNPACKED = 6
"""Times the size of an archive that its content takes at most: dumps of a ledger shrink to a fifth of that."""
_NEEDED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PGSSLROOTCERT")


@dataclass(frozen=True, slots=True)
class Drilled:
    """The result of a drill: whether the restore ended well and the books were right, its words, and its seconds."""

    is_right: bool
    said: str
    seconds: float


def drill(source: Path, within: Path, say: Callable[[str], object]) -> Drilled:
    """Restore the archive into a home below the folder `within` and a database of its own: a file there, or on the
    installation's server. Nothing of the installation is touched, and of the drill nothing stays.

    `say` is told first how much room the server needs; no session can see how much is free there. Raise BackupError
    where the drill can't begin, or its database can't be removed.
    """
    _check(source, within)
    with work_folder(within, PREFIX) as home, _database(home, say) as address:
        # No other setting: files go into the home, mail and metrics nowhere, and the backup's secrets are taken over.
        given = {name: os.environ[name] for name in _NEEDED if name in os.environ}
        given |= {"SLUICE_ENV": "development", "SLUICE_HOME": str(home), "SLUICE_RUNTIME_DIR": str(home / "run")}
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "restore", str(source)]
        began = time.monotonic()
        done = subprocess.run(  # noqa: S603 - ours
            command,
            env={**given, "DATABASE_URL": address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Drilled(done.returncode == 0, done.stdout, time.monotonic() - began)


def _check(source: Path, within: Path) -> None:
    try:
        needed, free = UNPACKED * source.stat().st_size, shutil.disk_usage(within).free
    except OSError as error:
        raise BackupError(f"{error.filename}: {error.strerror}: name an archive, and a folder for the drill") from error
    if free < needed:
        raise BackupError(
            f"the drill may need {needed >> 20} MiB in {within}, where {free >> 20} MiB are free: "
            "make room there, or name another folder with --within"
        )


@contextmanager
def _database(home: Path, say: Callable[[str], object]) -> Iterator[str]:
    """Yield the address of a new database, which is removed in the end."""
    if connection.vendor != "postgresql":
        yield f"sqlite:///{home / 'drill.sqlite3'}"
        return
    now = int(time.time())
    name = f"{DATABASE}{now}"
    try:
        _drop_forgotten(now)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")
            [size] = cursor.fetchone()
        say(f"the copy takes room on PostgreSQL's server while this lasts: the database has {size} now")
        _execute(f"CREATE DATABASE {name}")
    except DatabaseError as error:
        user = connection.settings_dict["USER"]
        raise BackupError(
            f"no database can be made for the drill: {_line(error)}: it takes room there and ALTER ROLE {user} CREATEDB"
        ) from error
    finally:
        connection.close()
    environment = Environment()
    address = environment.str("SLUICE_DIRECT_DATABASE_URL", default="") or environment.str("DATABASE_URL")
    try:
        yield urlsplit(address)._replace(path=f"/{name}").geturl()
    finally:
        try:
            _execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        except DatabaseError as error:
            raise BackupError(
                f"the drill's copy is still on the server, as the database {name}: {_line(error)}: "
                f"`DROP DATABASE {name} WITH (FORCE)` removes it, or a drill after a day"
            ) from error


def _execute(statement: str) -> None:
    """Execute what waits for a checkpoint, however long that takes."""
    with without_limits(), connection.cursor() as cursor:
        cursor.execute(statement)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _drop_forgotten(now: int) -> None:
    """Drop the databases of drills that were killed a day ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s) AND datdba = current_user::regrole",
            [DATABASE],
        )
        names = [name for (name,) in cursor.fetchall()]
    for name in names:
        made_at = name.removeprefix(DATABASE)
        if made_at.isdecimal() and int(made_at) < now - FORGOTTEN_SECONDS:
            _execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
