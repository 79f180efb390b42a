"""The database's schema: whether this code can work on it, and bringing it up to date beside those whom it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
from django.core.management.base import CommandError
from django.db import DatabaseError, OperationalError, connection
from django.db.migrations.executor import MigrationExecutor
from psycopg.errors import LockNotAvailable

from base.checks import command
from base.database.connections import MIGRATING, session_arguments
from gateway.runtime.gateway_lock import KEY, FileLock, GatewayRunningError, gateways
from operation.jobs_lock import JobsLock, JobsLockedError
from operation.setup import former_migrations, moved_home

TURN = (KEY[0], 2)
"""The advisory lock of whoever sets the database up."""
TRIES, PAUSE_S = 60, 2.0
"""How often a change is tried whose table is in use, and the seconds between two tries, in which others catch up."""

_DIRECT = "set SLUICE_DIRECT_DATABASE_URL to PostgreSQL's own address (docs/scaling.md#a-pooler-of-connections)"
_SERVER = "SELECT current_database(), pg_postmaster_start_time(), pg_backend_pid()"
_LONGEST = """
SELECT coalesce(nullif(application_name, ''), 'a program without a name')
    || ' at ' || coalesce(host(client_addr), 'this machine') || ' since ' || to_char(xact_start, 'HH24:MI:SS')
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Found:
    """The database as a process finds it: its name; why the process can't work on it, how that is mended, and the exit
    status, which is 78 where another start mends nothing. `is_reached`: it answers, and it is its schema that is wrong;
    `is_due`: all it lacks are migrations.
    """

    name: str
    problem: str = ""
    mend: str = ""
    code: int = 0
    is_reached: bool = True
    is_due: bool = False

    def __str__(self) -> str:
        return f"database {self.name}: {self.problem}: {self.mend}" if self.problem else ""


def look() -> Found:
    """Return how the database is found."""
    name = f"{connection.vendor} ({connection.settings_dict['NAME']})"
    driver = cast("Any", connection).Database
    try:
        # Past the pool, which answers with a timeout instead of the reason.
        driver.connect(**parameters()).close()
        return _look_inside(name)
    except (DatabaseError, driver.Error) as error:
        said = " ".join(str(error).split())
        if "startup parameter" in said:
            return Found(name, f"a pooler answers ({said})", _DIRECT, os.EX_CONFIG, is_reached=False)
        return Found(name, said, "start it, or correct DATABASE_URL", 1, is_reached=False)


def _look_inside(name: str) -> Found:
    if moved_home.is_unfinished():
        mend = "run that `manage.py restore` again: secrets and records of the backup are missing until then"
        return Found(name, "a restore into it was stopped", mend, 1)
    if problem := _address_problem():
        return Found(name, problem, _DIRECT, os.EX_CONFIG, is_reached=False)
    executor = MigrationExecutor(connection)
    applied, known = executor.loader.applied_migrations, executor.loader.disk_migrations
    newer = sorted(f"{app}.{one}" for app, one in applied if app in former_migrations.APPS and (app, one) not in known)
    if newer and not former_migrations.are_former(applied):
        back = command("restore", "BACKUP", "--replace")
        mend = f"start that version, or go back with the backup that was made before it: {back}"
        return Found(name, f"migrated by a newer Sluice ({newer[-1]} isn't known here)", mend, os.EX_CONFIG)
    if due := len(executor.migration_plan(executor.loader.graph.leaf_nodes())):
        return Found(name, f"{due} migrations not applied", f"run {command('setup')}", 1, is_due=True)
    return Found(name)


def database_problem() -> str:
    """Return what keeps the database from being used and how to mend it, or an empty string."""
    return str(_looked())


def need_database() -> None:
    """Raise CommandError, with the exit status, where this code can't work on the database."""
    found = _looked()
    if found.problem:
        raise CommandError(str(found), returncode=found.code)


def _looked() -> Found:
    """Look, and leave no connection open."""
    try:
        return look()
    finally:
        if not connection.in_atomic_block:
            connection.close()


def parameters() -> dict[str, Any]:
    """Return those of a connection of the driver's, past the pool."""
    parameters: dict[str, Any] = connection.get_connection_params()
    if connection.vendor != "postgresql":
        return {"database": parameters["database"]}
    return {name: value for name, value in parameters.items() if name not in {"pool", "cursor_factory"}}


def _address_problem() -> str:
    """Return what is wrong with the address at which sessions of our own are made, or an empty string."""
    if connection.vendor != "postgresql":
        return ""
    with closing(psycopg.connect(**session_arguments(connection.settings_dict, "look"), autocommit=True)) as session:
        found = session.execute(_SERVER).fetchone()
        assert found is not None, "it is one row"
        if found[2] != session.info.backend_pid:
            return "a pooler stands at the address at which sessions are made"
    if "DIRECT" in connection.settings_dict:
        with connection.cursor() as cursor:
            cursor.execute(_SERVER)
            if cursor.fetchone()[:2] != found[:2]:
                return "DATABASE_URL and SLUICE_DIRECT_DATABASE_URL are two databases"
    return ""


@contextmanager
def alone(*, while_serving: bool = False) -> Iterator[None]:
    """Within it nobody else sets the database up, and no gateway begins or serves (on SQLite no jobs either), but
    `while_serving`; raise CommandError while others do.
    """
    with ExitStack() as held:
        if connection.vendor == "sqlite":
            _take_files(held, while_serving=while_serving)
        else:
            arguments = session_arguments(connection.settings_dict, "lock")
            session = held.enter_context(closing(psycopg.connect(**arguments, autocommit=True)))
            _take_locks(session, while_serving=while_serving)
        yield


def _take_files(held: ExitStack, *, while_serving: bool) -> None:
    if while_serving:
        raise CommandError("--while-serving needs PostgreSQL: on SQLite stop what serves, set up, and start it again")
    database = Path(str(connection.settings_dict["NAME"]))
    try:
        held.callback(FileLock.take(database).release)
        held.callback(JobsLock.take(database).release)
    except (GatewayRunningError, JobsLockedError) as error:
        raise CommandError(f"the database has to be migrated: {error}") from error
    except OSError as error:
        place = f"{database.parent}: {error.strerror}"
        raise CommandError(f"{place}: make that folder one that you may write to, or correct DATABASE_URL") from error


def _take_locks(session: psycopg.Connection[Any], *, while_serving: bool) -> None:
    def is_taken(key: tuple[int, int]) -> bool:
        return session.execute("SELECT pg_try_advisory_lock(%s, %s)", key).fetchone() == (True,)

    if not is_taken(TURN):
        raise CommandError("another `setup` is at work on this database: wait until it has ended")
    if not while_serving and not is_taken(KEY):
        with closing(session.cursor()) as cursor:
            serving = ", ".join(gateways(cursor))
        raise CommandError(
            f"the database has to be migrated, and {serving or 'a gateway'} serves it: stop that first, or migrate "
            "beside it with `manage.py setup --while-serving` (UPGRADING.md says when)"
        )


def patiently(change: Callable[[], object], tell: Callable[[str], object]) -> None:
    """Call `change`, and again while a table that it needs is in use: it gives up its place in the table's queue each
    time, so that those behind it go on. Raise CommandError where that lasts.
    """
    for tried in range(TRIES):
        try:
            change()
        except OperationalError as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
        else:
            return
        if not tried:
            limit = MIGRATING["lock_timeout"].strip("'")
            tell(f"a table is in use by {_longest()}; trying again, {limit} at a time: nobody waits longer")
        time.sleep(PAUSE_S)
    raise CommandError(
        f"a table stays in use by {_longest()}: end that, then run this again; what is migrated so far stays"
    )


def _longest() -> str:
    """Return in words whose transaction lasts longest."""
    with connection.cursor() as cursor:
        cursor.execute(_LONGEST)
        found = cursor.fetchone()
    return str(found[0]) if found else "somebody who has just ended"
