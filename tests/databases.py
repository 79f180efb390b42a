"""The databases of a run: tests on SQLite and on PostgreSQL in one process, each database as migrated before each test.

Which one a test has is written on it: PostgreSQL where it is marked `money`, both, one after the other, where it is
marked `contract`, and SQLite otherwise. ``--database=both`` gives both to `money` too, ``--database=sqlite`` gives
SQLite to all but those marked `postgresql`, which have no other and are left out then.

A database is migrated once for a run, as a template that every xdist worker copies, as does each stack of processes.
A test that commits leaves rows behind: SQLite's file is overwritten by the template, and PostgreSQL's tables are
emptied and filled with the rows that migrating made.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from psycopg import sql

from base.database.connections import settings_of
from base.environment import Environment

SQLITE, POSTGRESQL = "sqlite", "postgresql"
TEMPLATE, MAKING, FILE = "sluice_template", "sluice_making", "template.sqlite3"
UNTOUCHED = {"django_migrations", "django_content_type", "auth_permission"}  # no test changes them
SERVER = "SLUICE_TEST_POSTGRES"
"""The environment variable with the address of the run's PostgreSQL server."""


def databases_of(definition: Any) -> tuple[str, ...]:
    """Return the databases on which a test function runs."""
    asked = definition.config.getoption("database")
    marks = ("contract", "money", "postgresql")
    is_contract, is_money, is_servers = (definition.get_closest_marker(mark) is not None for mark in marks)
    if is_servers:
        return (POSTGRESQL,)
    if asked == SQLITE or not (is_contract or is_money):
        return (SQLITE,)
    return (SQLITE, POSTGRESQL) if is_contract or asked == "both" else (POSTGRESQL,)


def database_of(item: Any) -> str:
    """Return the database of a collected test."""
    chosen = item.callspec.params.get("database") if hasattr(item, "callspec") else None
    return chosen or databases_of(item)[0]


class Database:
    """Django's default database as one kind of server has it, a copy of the run's template."""

    def __init__(self, given: dict[str, Any], variables: dict[str, str]) -> None:
        self._settings = given
        self._variables = variables
        self._wrapper: Any = None

    def use(self) -> None:
        """Make it the database of this process, for this thread and those that begin from now on."""
        settings.DATABASES["default"] = connections.settings["default"] = self._settings
        settings.SLUICE_EMBEDDED = isinstance(self, Sqlite)
        os.environ.pop("DATABASE_URL", None)
        os.environ.update(self._variables)
        if self._wrapper is not None:
            connections["default"] = self._wrapper

    def make(self) -> None:
        """Copy the template, which the first process of the run makes, unless there is a copy."""
        if self._wrapper is None:
            self._copy_template()
            self._wrapper = self._connect()
            self._look()

    def empty(self) -> None:
        """Make it as it was after migrating."""
        raise NotImplementedError

    def end(self) -> None:
        """Close what is open to it."""
        if self._wrapper is not None:
            self._wrapper.close()

    def _copy_template(self) -> None:
        raise NotImplementedError

    def _look(self) -> None:
        """Learn what `empty` needs to know."""

    def _connect(self) -> Any:
        connections["default"] = wrapper = connections.create_connection("default")
        return wrapper

    def _migrate(self, name: str) -> None:
        """Migrate the database of that `name`, by the command that an operator uses."""
        self._settings["NAME"] = name
        wrapper = self._connect()
        call_command("migrate", verbosity=0, interactive=False)
        wrapper.close()


class Sqlite(Database):
    """A file in the run's home."""

    def __init__(self, home: Path, worker: str) -> None:
        given = deepcopy(settings.DATABASES["default"])
        # Whether a commit outlives the machine is nothing that these tests could tell.
        given["OPTIONS"]["init_command"] = given["OPTIONS"]["init_command"].replace("=FULL", "=OFF")
        super().__init__(given, {})
        self._template, self._file = home / FILE, home / f"test_{worker}.sqlite3"

    def empty(self) -> None:
        connection.ensure_connection()
        with closing(sqlite3.connect(f"file:{self._template}?mode=ro", uri=True)) as template:
            template.backup(connection.connection)

    def _copy_template(self) -> None:
        shutil.copyfile(sqlite_template(self._template.parent, self._migrate), self._file)
        self._settings["NAME"] = str(self._file)


class Postgresql(Database):
    """A database on the run's server."""

    def __init__(self, server: str, worker: str) -> None:
        given = settings_of(Environment().db_url_config(server), pool=16)
        super().__init__(connections.configure_settings({"default": given})["default"], {"DATABASE_URL": server})
        self._server, self._name = server, f"test_{worker}"
        self._script = ""

    def empty(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(self._script)

    def end(self) -> None:
        super().end()
        if self._wrapper is not None:
            self._wrapper.close_pool()

    def _copy_template(self) -> None:
        copy_on_postgres(Path(os.environ["SLUICE_HOME"]), self._server, self._name, self._migrate_on_server)
        self._settings["NAME"] = self._name

    def _migrate_on_server(self, name: str) -> None:
        self._migrate(name)
        connection.close_pool()  # nobody may be connected to what is copied

    def _look(self) -> None:
        """Write the script that empties all tables and fills those that had rows, past every trigger."""
        statements = ["SET session_replication_role = replica"]
        with connection.cursor() as cursor:
            for table in sorted(connection.introspection.table_names(cursor)):
                if table in UNTOUCHED:
                    continue
                statements.append(f'DELETE FROM "{table}"')
                cursor.execute(f'SELECT * FROM "{table}"')
                columns = ", ".join(f'"{column.name}"' for column in cursor.description)
                for row in cursor.fetchall():
                    values = ", ".join(sql.Literal(value).as_string() for value in row)
                    statements.append(f'INSERT INTO "{table}" ({columns}) VALUES ({values})')
        self._script = "; ".join([*statements, "SET session_replication_role = DEFAULT"])


class Databases:
    """The databases of this process; `current` is the one that the test has which runs."""

    def __init__(self, worker: str) -> None:
        self._by_name: dict[str, Database] = {SQLITE: Sqlite(Path(os.environ["SLUICE_HOME"]), worker)}
        if SERVER in os.environ:
            self._by_name[POSTGRESQL] = Postgresql(os.environ[SERVER], worker)
        self.current = self._by_name[SQLITE]

    def use(self, name: str) -> Database:
        """Let the next test have the database of that name; it is made by the first one that looks into it."""
        self.current = self._by_name[name]
        self.current.use()
        return self.current

    def end(self) -> None:
        for database in self._by_name.values():
            database.end()


def sqlite_template(home: Path, migrate: Callable[[str], None]) -> Path:
    """Return the file of the run whose home that is, in which there are the tables that `migrate` makes."""
    template = home / FILE
    with _alone(home, SQLITE):
        if not template.exists():
            making = template.with_suffix(".making")
            migrate(str(making))
            making.rename(template)
    return template


def copy_on_postgres(home: Path, server: str, name: str, migrate: Callable[[str], None]) -> None:
    """Make a database of that name on the server, with the tables that `migrate` makes in its template."""
    names = {"making": sql.Identifier(MAKING), "template": sql.Identifier(TEMPLATE), "name": sql.Identifier(name)}
    with _alone(home, POSTGRESQL), psycopg.connect(server, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [TEMPLATE]).fetchone():
            connection.execute(sql.SQL("CREATE DATABASE {making}").format(**names))
            migrate(MAKING)
            connection.execute(sql.SQL("ALTER DATABASE {making} RENAME TO {template}").format(**names))
        connection.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**names))


@contextmanager
def _alone(home: Path, name: str) -> Iterator[None]:
    """Let one process of the run at a time make what all of them copy."""
    with (home / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
