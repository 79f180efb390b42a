"""The database's clock, by which grants and leases end: the same for every process, whatever its machine says."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection
from django.db.models import DateTimeField
from django.db.models.expressions import RawSQL

STATEMENTS = {
    "postgresql": "SELECT clock_timestamp()",  # NOW() stands still since the transaction began, before it had its locks
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
}
"""By vendor: what everybody asks who needs the time. Tests put a moment of their own here."""


def now() -> datetime:
    """Return what the database's clock says, asked on Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute(STATEMENTS[connection.vendor])
        [moment] = cursor.fetchone()
    return parsed(moment)


def now_in_query() -> RawSQL:
    """Return the same as an expression, for a query that reads other things besides."""
    statement = STATEMENTS[connection.vendor].replace("%", "%%")
    return RawSQL(statement, (), output_field=DateTimeField())  # noqa: S611 - a constant


def parsed(value: str | datetime) -> datetime:
    """Return the moment that a column holds: SQLite's text is in UTC, and so is what Django parsed of it."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
