"""How a connection to PostgreSQL is made and how long it waits: one policy for Django's connections and for sessions
of our own beside them.

The kernel ends a connection whose peer is silent (keepalives, unacknowledged data); the server ends a statement that
takes too long, and a transaction of ours that is idle for too long, with its locks. A peer that acknowledges but never
answers is caught by `base.database.bounded_connection`.

DATABASE_URL may name a pooler (PgBouncer), which passes on neither options nor prepared statements and gives each
transaction another session: what needs a session of its own goes to PostgreSQL itself, at SLUICE_DIRECT_DATABASE_URL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENT = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # ms for which what was sent may stay unacknowledged
}
SQLITE = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": (
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA recursive_triggers=ON; PRAGMA foreign_keys=ON"
    ),
}
SERVER = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "15s"}
MIGRATING = {**dict.fromkeys(SERVER, "0"), "lock_timeout": "'1s'"}
"""Limits while migrating. A statement may take long; who waits behind it for a table waits no longer than this, which
is less than the 2 s after which a request that can't hold its credit is refused.
"""

BY_SESSION = frozenset({"setup", "quickstart", "restore", "migrate", "backup", "drill", "tenants", "people"})
"""Commands that go past a pooler: they set limits, take locks, dump and make databases."""
BY_ONE = frozenset({"serve", "worker"})
"""Commands whose one thread reads the catalogue: they have one connection."""
_DJANGOS = {"pool", "connection_class", "isolation_level", "server_side_binding", "assume_role", "options"}


def command() -> str:
    """Return the command of this process: manage.py's, `celery`, or `python` for any other program."""
    program, *rest = sys.argv or [""]
    if Path(program).name == "manage.py" and rest:
        return rest[0]
    return "celery" if "celery" in Path(program).parts[-2:] else "python"


def session_name(purpose: str = "") -> str:
    """Return the `application_name` of a session: the process's command and number, and what the session is for."""
    return f"sluice {command()} {os.getpid()} {purpose}".rstrip()[:63]


def postgresql_options(given: Mapping[str, Any], *, is_pooled: bool = False) -> dict[str, Any]:
    """Return the options of a connection: the policy, and over it what its address says.

    A pooler takes no limits of ours: there they are the role's own (`keep_limits`).
    """
    options = {"application_name": session_name(), **CLIENT, **given}
    if not is_pooled:
        policy = " ".join(f"-c {name}={value}" for name, value in SERVER.items())
        options["options"] = f"{policy} {given.get('options', '')}".strip()
    return options


def settings_of(found: Mapping[str, Any], *, pool: int, direct: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return Django's settings for the database at DATABASE_URL; PostgreSQL has at most `pool` connections.

    Where `direct` is another address of it, that of a server behind a pooler, they hold its settings as `DIRECT`.
    """
    if "sqlite" in found["ENGINE"]:
        return {**found, "OPTIONS": SQLITE}
    if direct is not None and direct != found:
        beside = settings_of(direct, pool=pool)
        if command() in BY_SESSION:
            return {**beside, "IS_BESIDE_POOLER": True}
        return {**_settings_of(found, pool, is_pooled=True), "DISABLE_SERVER_SIDE_CURSORS": True, "DIRECT": beside}
    return _settings_of(found, pool)


def _settings_of(found: Mapping[str, Any], pool: int, *, is_pooled: bool = False) -> dict[str, Any]:
    from base.database.bounded_connection import BoundedConnection

    most = 1 if command() in BY_ONE else pool
    pooled = {"connection_class": BoundedConnection, "min_size": 1, "max_size": most, "timeout": 5}
    options = {**postgresql_options(found.get("OPTIONS", {}), is_pooled=is_pooled), "pool": pooled}
    return {**found, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True, "OPTIONS": options}


def session_arguments(settings: Mapping[str, Any], purpose: str, options: str = "") -> dict[str, Any]:
    """Return psycopg's arguments of a session for one `purpose`, at PostgreSQL itself, with more `options` of the
    server; `settings` are Django's for the database.
    """
    settings = settings.get("DIRECT") or settings
    fields = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    given = {name: settings[key] for name, key in fields.items() if settings.get(key)}
    extra = settings.get("OPTIONS", {})
    given |= {name: value for name, value in extra.items() if name not in _DJANGOS}
    given["options"] = " ".join(part for part in (extra.get("options"), options) if part)
    return {**given, "application_name": session_name(purpose)}


def limit_migration(*, using: str = "default", **signal: Any) -> None:
    """Receive `pre_migrate`: let statements take long, and none wait long for a lock."""
    _set_limits(using, MIGRATING, answer_seconds=None)


@contextmanager
def without_limits(*, using: str = "default") -> Iterator[None]:
    """Lift the time limits for work that may take long: for commands of `BY_SESSION`."""
    _set_limits(using, dict.fromkeys(SERVER, "0"), answer_seconds=None)
    try:
        yield
    finally:
        restore_limits(using=using)


def restore_limits(*, using: str = "default", **signal: Any) -> None:
    """Receive the last `post_migrate`: set the time limits again, since the connection may go back to a pool."""
    from base.database.bounded_connection import LONGEST_SECONDS

    _set_limits(using, dict.fromkeys(SERVER, "DEFAULT"), answer_seconds=LONGEST_SECONDS)


def keep_limits(using: str = "default") -> None:
    """Make the limits the role's own in this database, where a pooler stands in front of it: it passes none on."""
    from django.db import connections

    connection = connections[using]
    if connection.settings_dict.get("IS_BESIDE_POOLER"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT quote_ident(current_user), quote_ident(current_database())")
            [role, database] = cursor.fetchone()
            for name, value in SERVER.items():
                cursor.execute(f"ALTER ROLE {role} IN DATABASE {database} SET {name} = '{value}'")


def _set_limits(using: str, limits: Mapping[str, str], *, answer_seconds: float | None) -> None:
    from django.db import connections  # the settings read this module

    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for name, value in limits.items():
                cursor.execute(f"SET {name} = {value}")
        connection.connection.answer_seconds = answer_seconds
