"""The database's clock, by which grants and leases end: one clock for the processes of all machines."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection
from django.db.models import DateTimeField
from django.db.models.expressions import RawSQL

STATEMENTS = {
    "postgresql": "SELECT clock_timestamp()",  # not NOW(), which is when the transaction began, before it got its locks
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
}
"""The statement that reads the clock, by database vendor. Tests replace it to move the time."""


def now() -> datetime:
    """Return the database's time, in UTC, read on Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute(STATEMENTS[connection.vendor])
        [moment] = cursor.fetchone()
    return parsed(moment)


def now_in_query() -> RawSQL:
    """Return the database's time as an expression, for a query that reads other columns too."""
    statement = STATEMENTS[connection.vendor].replace("%", "%%")
    return RawSQL(statement, (), output_field=DateTimeField())  # noqa: S611 - a constant


def parsed(value: str | datetime) -> datetime:
    """Return a column's moment with its time zone: SQLite keeps UTC, as text or naive datetime, without saying so."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
