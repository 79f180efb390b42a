"""The rows of a SQLite database in PostgreSQL: all of them at once, or nothing is changed there.

One transaction makes the tables by the migrations, and streams each table's rows into its own through COPY, past
triggers and references, which hold again before it ends. Neither side ever has more than some rows in memory.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

from base.database.connections import SERVER, restore_limits
from operation.backup import postgresql
from operation.backup.archive import BackupError
from operation.setup.moved_home import UNFINISHED
from operation.setup.steps import Steps

MANY = 10_000
"""Rows from which on a table is a step of its own."""

# A moment stands in SQLite as text in UTC that doesn't say so, a duration as its microseconds; all else reads the same.
_AS_TEXT = {"timestamp with time zone": "{} || '+00:00'", "interval": "{} || ' microseconds'"}
_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL),
    CASE WHEN a.attidentity <> '' THEN pg_get_serial_sequence(c.oid::regclass::text, a.attname) END
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0
    AND NOT a.attisdropped AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relname, a.attnum
"""
_REFERENCES = """
SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid) FROM pg_constraint
WHERE contype = 'f' AND connamespace = current_schema()::regnamespace ORDER BY 1, 2
"""


def upgrade(database: Path) -> None:
    """Apply the migrations that the SQLite database lacks, in a process whose database it is."""
    variables = {**os.environ, "DATABASE_URL": f"sqlite:///{quote(str(database))}"}
    variables.pop("DATABASE_URL_FILE", None)
    command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "migrate", "--noinput", "--verbosity=0"]
    done = subprocess.run(  # noqa: S603 - ours
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-1000:]
        raise BackupError(f"the database of the backup can't be brought up to date: {said}")


def copy(database: Path, parameters: Mapping[str, Any], show: Steps) -> None:
    """Replace everything in our PostgreSQL by what the SQLite `database` holds, or change nothing.

    Raises BackupError while anybody else is connected as our user, and where a row can't be stored there.
    """
    postgresql.be_alone(parameters)
    try:
        with closing(sqlite3.connect(database)) as source, transaction.atomic(), connection.cursor() as cursor:
            with show.step("tables of PostgreSQL"):
                _lift_limits(cursor)
                cursor.execute(postgresql.DROP_ALL)
                with connection.execute_wrapper(_for_nobody):
                    call_command("migrate", verbosity=0, interactive=False)
                _lift_limits(cursor)  # which hold again at the end of migrating
            _Copy(source, cursor).run(show)
            cursor.execute(f"CREATE TABLE {UNFINISHED} ()")
    except (psycopg.Error, DatabaseError, sqlite3.Error) as error:
        raise _failed("the database", error) from error
    restore_limits()


def _failed(what: str, error: Exception) -> BackupError:
    return BackupError(f"{what} can't go to PostgreSQL, which is as it was: {' '.join(str(error).split())}")


def _lift_limits(cursor: Any) -> None:
    for name in SERVER:
        cursor.execute(f"SET LOCAL {name} = 0")
    connection.connection.answer_seconds = None


def _for_nobody(execute: Callable[..., Any], statement: Any, *rest: Any) -> Any:
    """Let migrations make their indexes in our transaction: nobody else is there for whom to make them beside."""
    return execute(str(statement).replace(" INDEX CONCURRENTLY ", " INDEX "), *rest)


class _Copy:
    """Rows on their way from one database to another, table by table, within the latter's transaction."""

    def __init__(self, source: sqlite3.Connection, cursor: Any) -> None:
        self._source = source
        self._cursor = cursor
        self._columns: dict[str, dict[str, str]] = defaultdict(dict)
        self._sequences: list[tuple[str, str, str]] = []
        cursor.execute(_COLUMNS)
        for table, column, kind, sequence in cursor.fetchall():
            self._columns[table][column] = kind
            if sequence:
                self._sequences.append((table, column, sequence))

    def run(self, show: Steps) -> None:
        counts = self._counted()
        references = self._let_go()
        with show.step("rows of small tables"):
            for table, count in counts.items():
                if count < MANY:
                    self._copy(table)
        for table, count in counts.items():
            if count >= MANY:
                with show.step(f"{table}: {count:,}"):
                    self._copy(table)
        with show.step("references, numbers, triggers"):
            self._hold_again(references)
            self._continue_numbers()
        self._compare(counts)

    def _counted(self) -> dict[str, int]:
        """Return how many rows each table of the source has; raise BackupError if another one's would be lost."""
        names = self._source.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        counts = {}
        for (table,) in names.fetchall():
            [counts[table]] = self._source.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608
            columns = {row[1] for row in self._source.execute(f'PRAGMA table_info("{table}")')}
            if counts[table] and columns != self._columns.get(table, {}).keys():
                raise BackupError(f"the table {table} of the backup isn't as this version of Sluice makes it")
        return {table: count for table, count in counts.items() if table in self._columns}

    def _let_go(self) -> list[tuple[str, str, str]]:
        """Empty all tables, without triggers and references, and return the latter."""
        self._cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # of the rows that migrating made
        self._cursor.execute(_REFERENCES)
        references: list[tuple[str, str, str]] = self._cursor.fetchall()
        for table, name, _ in references:
            self._cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        for table in self._columns:
            self._cursor.execute(f'ALTER TABLE "{table}" DISABLE TRIGGER USER')
        self._cursor.execute(f"TRUNCATE {', '.join(_quoted(self._columns))}")
        return references

    def _copy(self, table: str) -> None:
        columns = self._columns[table]
        read = ", ".join(
            _AS_TEXT.get(kind, "{}").format(name) for name, kind in zip(_quoted(columns), columns.values(), strict=True)
        )
        rows = self._source.execute(f'SELECT {read} FROM "{table}"')  # noqa: S608 - of our own tables
        try:
            with self._cursor.copy(f'COPY "{table}" ({", ".join(_quoted(columns))}) FROM STDIN') as stream:
                for row in rows:
                    stream.write_row(row)
        except psycopg.Error as error:
            raise _failed(f"a row of {table}", error) from error

    def _hold_again(self, references: list[tuple[str, str, str]]) -> None:
        for table, name, definition in references:
            self._cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
        for table in self._columns:
            self._cursor.execute(f'ALTER TABLE "{table}" ENABLE TRIGGER USER')

    def _continue_numbers(self) -> None:
        """Let numbers go on after the last one that SQLite gave, also where its row is gone."""
        given = dict(self._source.execute("SELECT name, seq FROM sqlite_sequence"))
        for table, column, sequence in self._sequences:
            last = given.get(table) or 0
            following = f'SELECT 1 + greatest(max("{column}"), %s) FROM "{table}"'  # noqa: S608
            self._cursor.execute(f"SELECT setval(%s, ({following}), false)", [sequence, last])

    def _compare(self, counts: dict[str, int]) -> None:
        for table, count in counts.items():
            self._cursor.execute(f'SELECT count(*) FROM "{table}"')  # noqa: S608
            [[found]] = self._cursor.fetchall()
            if found != count:
                raise BackupError(f"{table} has {count} rows in the backup, and {found} of them came to PostgreSQL")
        self._cursor.execute(f"ANALYZE {', '.join(_quoted(self._columns))}")


def _quoted(names: Mapping[str, Any]) -> list[str]:
    return [f'"{name}"' for name in names]
