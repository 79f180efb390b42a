"""Checks of the database: reached, migrated by this code, guarded, writable, and locked by nobody for long."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from django.db import connection
from django.utils import timezone
from psycopg.errors import InsufficientPrivilege

from base import clock
from base.checks import Check, Finding, Severity
from gateway.runtime.readiness import TRIGGERS
from operation.schema import look, parameters

APART = timedelta(seconds=5)
LONG_SECONDS = 60.0
"""A transaction that lasts longer, idle or with others waiting for it, is told."""
FULL = 0.9
"""Share of the connections in use beyond which new ones may soon be refused."""
WAIT_SECONDS = 5.0
_PSQL = 'psql "$DATABASE_URL" -c'


def _named() -> str:
    return f"{connection.vendor} ({connection.settings_dict['NAME']})"


def _driver() -> Any:
    return cast("Any", connection).Database


def _connect() -> Any:
    """Return a connection of the driver's, past the pool, which answers with a timeout instead of the reason."""
    more = {} if connection.vendor == "postgresql" else {"timeout": WAIT_SECONDS, "isolation_level": None}
    return _driver().connect(**parameters(), **more)


def _reached(_: object) -> Iterator[Finding]:
    found = look()
    if found.is_reached:
        yield Finding(f"{found.name} answers")
    else:
        yield Finding(f"{found.name}: {found.problem}", found.mend)


def _schema(_: object) -> Iterator[Finding]:
    found = look()
    yield Finding(f"{found.name}: {found.problem or 'migrated'}", found.mend)


def _triggers(_: object) -> Iterator[Finding]:
    found = list(TRIGGERS.look(None))
    yield from found or [Finding("all in place")]


_MEBIBYTE = "CREATE TEMPORARY TABLE proof AS SELECT repeat(md5(n::text), 32) FROM generate_series(1, 1024) AS n"


_ROW = "INSERT INTO gateway_observation (kind, name, facts, at) VALUES ('proof', 'of writing', '{}', now())"


def _writable(_: object) -> Iterator[Finding]:
    """Write a mebibyte that is rolled back; on SQLite take the lock of writers."""
    is_server = connection.vendor == "postgresql"
    if connection.in_atomic_block and not is_server:  # the lock may be our own
        return
    try:
        with closing(_connect()) as session:
            session.execute("BEGIN" if is_server else "BEGIN IMMEDIATE")
            if is_server:
                with suppress(InsufficientPrivilege), session.transaction():
                    session.execute(_MEBIBYTE)
                session.execute(_ROW)
            session.execute("ROLLBACK")
    except _driver().Error as error:
        yield Finding(" ".join(str(error).split()), _writable_again(error))
    else:
        yield Finding("takes what is written")


def _writable_again(error: Exception) -> str:
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "postgresql":
        if "readonly" in str(error):
            return f"`chmod u+w {shlex.quote(name)}`"
        return f"`fuser {shlex.quote(name)}` names the processes that have it open: end the one that locks it"
    match getattr(error, "sqlstate", None):
        case "25006":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery()")
                if cursor.fetchone()[0]:
                    return "it is a standby: have DATABASE_URL name the primary"
            reset = f'ALTER DATABASE "{name}" RESET default_transaction_read_only'
            lift = "SET default_transaction_read_only = off"
            return f"`{_PSQL} '{lift}' -c '{reset}'`, then start again what is connected"
        case "53100":
            return f"make room on its disk: `{_PSQL} 'SHOW data_directory'` says which, `df -h` how full it is"
    return "its server's log says why"


_USED = """
SELECT count(*), least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user))
FROM pg_stat_activity WHERE backend_type = 'client backend' AND ({})
"""
_BY_NAME = """
SELECT coalesce(nullif(regexp_replace(application_name, '[ 0-9a-f-]*$', ''), ''), 'unnamed'), count(*)
FROM pg_stat_activity WHERE backend_type = 'client backend' GROUP BY 1 ORDER BY 2 DESC LIMIT 5
"""


def _connections(_: object) -> Iterator[Finding]:
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT datconnlimit FROM pg_database WHERE datname = current_database()")
        of_database = cursor.fetchone()[0]
        cursor.execute(_USED.format("datname = current_database()" if of_database >= 0 else "true"))
        used, most = cursor.fetchone()
        cursor.execute(_BY_NAME)
        users = ", ".join(f"{name} {count}" for name, count in cursor.fetchall())
    name = connection.settings_dict["NAME"]
    allow = (
        f"`{_PSQL} 'ALTER DATABASE \"{name}\" CONNECTION LIMIT -1'`"
        if of_database >= 0
        else f"`{_PSQL} 'ALTER SYSTEM SET max_connections = {2 * most}'` and restart PostgreSQL"
    )
    mend = f"lower SLUICE_DATABASE_POOL, or allow more: {allow}" if used > FULL * most else ""
    yield Finding(f"{used} of {most} connections used ({users})", mend)


_LONG = """
SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'this machine'), a.state,
    extract(epoch FROM now() - a.xact_start)::int,
    left(regexp_replace(split_part(a.query, '''', 1), '\\s+', ' ', 'g'), 80), count(w.pid)
FROM pg_stat_activity a LEFT JOIN pg_stat_activity w ON a.pid = ANY (pg_blocking_pids(w.pid))
WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    AND a.xact_start < now() - make_interval(secs => %s)
GROUP BY 1, 2, 3, 4, 5, 6
HAVING count(w.pid) > 0 OR a.state LIKE 'idle in transaction%%'
ORDER BY 7 DESC LIMIT 5
"""


def _locks(_: object) -> Iterator[Finding]:
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(_LONG, [LONG_SECONDS])
        found = cursor.fetchall()
    for pid, name, host, state, seconds, query, waiting in found:
        text = f"{name or 'unnamed'} at {host}, {state} for {seconds} s, {waiting} sessions wait for it: {query}"
        yield Finding(text, f"`{_PSQL} 'SELECT pg_terminate_backend({pid})'` ends it", f"process {pid}")
    if not found:
        yield Finding("nobody holds locks for long")


def _clock(_: object) -> Iterator[Finding]:
    """Compare this machine's clock, by which keys and links end, with the database's, by which credit and leases do."""
    apart = abs(timezone.now() - clock.now())
    finding = f"{apart.total_seconds():.1f} s from the database's"
    yield Finding(finding, "set both by NTP: `timedatectl set-ntp true`" if apart > APART else "")


DATABASE: Check[object] = Check(
    "database",
    "a connection can be opened",
    Severity.CRITICAL,
    _reached,
    hits="Every request is refused, and no page opens.",
)
SCHEMA: Check[object] = Check(
    "schema",
    "the database has exactly the migrations of this code",
    Severity.CRITICAL,
    _schema,
    needs=("database",),
    hits="Processes of another release end instead of serving.",
)
CHECKS: tuple[Check[object], ...] = (
    DATABASE,
    SCHEMA,
    replace(TRIGGERS, look=_triggers, needs=("schema",)),
    Check(
        "writes",
        "the database takes what is written",
        Severity.CRITICAL,
        _writable,
        needs=("database",),
        hits="Nothing can be held or charged, so every request is refused.",
    ),
    Check(
        "connections",
        "PostgreSQL has connections left",
        Severity.CRITICAL,
        _connections,
        needs=("database",),
        hits="Requests wait for a connection, then fail.",
    ),
    Check(
        "locks",
        "nobody holds PostgreSQL's locks for long",
        Severity.CRITICAL,
        _locks,
        needs=("database",),
        hits="Charges and changes wait for the lock, then fail.",
    ),
    Check(
        "clock",
        "this machine's clock is the database's",
        Severity.WARNING,
        _clock,
        needs=("schema",),
        hits="Keys, links and grants end too early or too late.",
    ),
)
