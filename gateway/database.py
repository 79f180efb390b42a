"""How long a connection to PostgreSQL waits for anything: one policy for Django's connections and the writer's own.

A peer that went silent is noticed by the kernel (keepalives, unacknowledged data), one that works for too long by the
server, and one of ours that stands still inside a transaction loses it, with its locks. One that acknowledges and says
nothing is noticed by who waits for it: `gateway.bounded_connection`.
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
SERVER = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "15s"}


def postgresql_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a connection: the policy, and over it what the address of the database says."""
    policy = " ".join(f"-c {name}={value}" for name, value in SERVER.items())
    return {**CLIENT, **given, "options": f"{policy} {given.get('options', '')}".strip()}


def lift_limits(*, using: str = "default", **signal: Any) -> None:
    """Receive `pre_migrate`: a migration takes what it takes."""
    _set_limits(using, "SET {} = 0", answer_seconds=None)


def restore_limits(*, using: str = "default", **signal: Any) -> None:
    """Receive `post_migrate`: the connection may go back to a pool."""
    from gateway.bounded_connection import LONGEST_SECONDS

    _set_limits(using, "RESET {}", answer_seconds=LONGEST_SECONDS)


def _set_limits(using: str, statement: str, *, answer_seconds: float | None) -> None:
    from django.db import connections  # the settings read this module

    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for name in SERVER:
                cursor.execute(statement.format(name))
        connection.connection.answer_seconds = answer_seconds
