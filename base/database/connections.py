"""How long a connection to PostgreSQL waits for anything: one policy for Django's connections and the writer's own.

The kernel ends a connection whose peer is silent (keepalives, unacknowledged data); the server ends a statement that
takes too long, and a transaction of ours that is idle for too long, with its locks. A peer that acknowledges but never
answers is caught by `base.database.bounded_connection`.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def postgresql_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a connection: the policy, and over it what DATABASE_URL says."""
    policy = " ".join(f"-c {name}={value}" for name, value in SERVER.items())
    return {**CLIENT, **given, "options": f"{policy} {given.get('options', '')}".strip()}


def settings_of(found: Mapping[str, Any], *, pool: int) -> dict[str, Any]:
    """Return Django's settings for the database that DATABASE_URL names; PostgreSQL has at most `pool` connections."""
    if "sqlite" in found["ENGINE"]:
        return {**found, "OPTIONS": SQLITE}
    from base.database.bounded_connection import BoundedConnection

    pooled = {"connection_class": BoundedConnection, "min_size": 1, "max_size": pool, "timeout": 5}
    options = {**postgresql_options(found.get("OPTIONS", {})), "pool": pooled}
    return {**found, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True, "OPTIONS": options}


def lift_limits(*, using: str = "default", **signal: Any) -> None:
    """Receive `pre_migrate`: lift the time limits, since a migration may take long."""
    _set_limits(using, "SET {} = 0", answer_seconds=None)


def restore_limits(*, using: str = "default", **signal: Any) -> None:
    """Receive `post_migrate`: set the time limits again, since the connection may go back to a pool."""
    from base.database.bounded_connection import LONGEST_SECONDS

    _set_limits(using, "RESET {}", answer_seconds=LONGEST_SECONDS)


def _set_limits(using: str, statement: str, *, answer_seconds: float | None) -> None:
    from django.db import connections  # the settings read this module

    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for name in SERVER:
                cursor.execute(statement.format(name))
        connection.connection.answer_seconds = answer_seconds
