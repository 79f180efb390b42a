"""PostgreSQL's side of a backup: pg_dump's custom format, and its restoration in one transaction."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from operation.backup.archive import BackupError
from operation.setup.moved_home import UNFINISHED

MEMBER = "database.pgdump"
TRIES, TRY_SECONDS = 10, 0.2  # a session that has just ended may be listed for a moment

# What belongs to an extension or to somebody else is not ours to drop.
DROP_ALL = """
DO $$
DECLARE one record;
BEGIN
    FOR one IN SELECT c.oid::regclass AS name FROM pg_class c
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
            AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
    LOOP EXECUTE 'DROP TABLE IF EXISTS ' || one.name || ' CASCADE'; END LOOP;
    FOR one IN SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace
            AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
    LOOP EXECUTE 'DROP ROUTINE IF EXISTS ' || one.name || ' CASCADE'; END LOOP;
END $$;
"""
_OTHERS = """
SELECT coalesce(nullif(application_name, ''), 'a program without a name'),
    coalesce(host(client_addr), 'this machine')
FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND backend_type = 'client backend'
    AND pid <> pg_backend_pid()
"""


def dump(parameters: Mapping[str, Any], target: Path) -> None:
    """Write the database as it is at one moment; writers go on meanwhile."""
    command = [_program("pg_dump"), "--format=custom", "--compress=0", "--no-owner", "--no-privileges"]
    _run([*command, f"--file={target}", f"--dbname={_address(parameters)}"], parameters)


def has_tables(parameters: Mapping[str, Any]) -> bool:
    """Return whether there is any table in the database."""
    statement = "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema())"
    with _session(parameters) as session:
        row = session.execute(statement).fetchone()
    return bool(row and row[0])


def restore(dumped: Path, parameters: Mapping[str, Any]) -> None:
    """Replace everything in the database by the dump, or change nothing: it is one transaction.

    Raises BackupError while anybody else is connected as our user.
    """
    be_alone(parameters)
    script = dumped.with_suffix(".sql")
    _run([_program("pg_restore"), "--no-owner", "--no-privileges", f"--file={script}", str(dumped)], parameters)
    with script.open("rb") as rest:
        first = dumped.with_suffix(".first.sql")
        first.write_text(f"{DROP_ALL} CREATE TABLE {UNFINISHED} ();")
        psql = [_program("psql"), "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
        _run([*psql, f"--dbname={_address(parameters)}", f"--file={first}", "--file=-"], parameters, stdin=rest)


def be_alone(parameters: Mapping[str, Any]) -> None:
    """Raise BackupError while anybody else is connected as our user."""
    with _session(parameters) as session:
        for _ in range(TRIES):
            others = session.execute(_OTHERS).fetchall()
            if not others:
                return
            time.sleep(TRY_SECONDS)
    who = ", ".join(sorted({f"{name} at {where}" for name, where in others}))
    raise BackupError(f"the database is in use by {who}: stop gateways, jobs and workers first")


def _session(parameters: Mapping[str, Any]) -> psycopg.Connection[tuple[Any, ...]]:
    try:
        return psycopg.connect(_address(parameters), password=parameters.get("password"), autocommit=True)
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        raise BackupError(f"PostgreSQL can't be reached: {said}: start it, or correct DATABASE_URL") from error


def _address(parameters: Mapping[str, Any]) -> str:
    """Return the connection's address for libpq's programs: without the password, which others could see there, and
    with no time limit but that of locks.
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()} - {"password", "options"}
    given = {name: value for name, value in parameters.items() if name in known and value is not None}
    return make_conninfo("", **given, options="-c statement_timeout=0 -c lock_timeout=10s")


def _program(name: str) -> str:
    """Return the path of one of PostgreSQL's client programs: that on PATH, else the newest of Debian's folders."""
    if found := shutil.which(name):
        return found
    candidates = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    if newest := max(candidates, key=lambda path: int(path.parts[-3]), default=None):
        return str(newest)
    raise BackupError(f"{name} is missing: install PostgreSQL's client programs, of the server's version or newer")


def _run(command: list[str], parameters: Mapping[str, Any], *, stdin: Any = subprocess.DEVNULL) -> None:
    environment = {**os.environ, "PGPASSWORD": str(parameters.get("password") or "")}
    done = subprocess.run(  # noqa: S603 - PostgreSQL's own programs
        command, env=environment, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-1000:]
        raise BackupError(f"{Path(command[0]).name} failed: {said}")
