"""Sets of database triggers: installing one adds those that are missing and drops those of earlier versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger; its name ends with a digest of its statement, so that a changed trigger has a new name."""

    name: str
    table: str
    statement: str


@dataclass(frozen=True, slots=True)
class TriggerSet:
    """The triggers whose names begin with `prefix`: those of `triggers(vendor)`; `functions` are PostgreSQL's only."""

    prefix: str
    triggers: Callable[[str], Iterable[Trigger]]
    functions: Sequence[str]

    def install(self, connection: BaseDatabaseWrapper) -> None:
        """Make the installed triggers exactly the expected ones; tables that aren't migrated yet are left out."""
        tables = set(connection.introspection.table_names())
        expected = {one.name: one.statement for one in self.triggers(connection.vendor) if one.table in tables}
        present = self.present(connection)
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            if connection.vendor == "postgresql" and not expected.keys() <= present.keys():
                for function in self.functions:
                    cursor.execute(function)
            for name, table in present.items():
                if name not in expected:
                    cursor.execute(_drop(connection, name, table))
            for name, statement in expected.items():
                if name not in present:
                    cursor.execute(statement)

    def missing(self, connection: BaseDatabaseWrapper) -> list[str]:
        """Return the names of expected triggers that are absent or disabled. One of the same table and event that has
        another digest stands for each: it is another release's, and gateways of both serve during an upgrade.
        """
        expected, present = [one.name for one in self.triggers(connection.vendor)], self.present(connection)
        others = Counter(map(_place, present.keys() - expected))
        found = []
        for name in expected:
            if name not in present:
                others[_place(name)] -= 1
                if others[_place(name)] < 0:
                    found.append(name)
        return found

    def drop(self, connection: BaseDatabaseWrapper) -> None:
        """Remove every trigger of the set."""
        with connection.cursor() as cursor:
            for name, table in self.present(connection).items():
                cursor.execute(_drop(connection, name, table))

    def present(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """Return the installed triggers that fire as name → table."""
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT t.tgname, c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
                    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' "
                    "AND starts_with(t.tgname, %s) AND n.nspname = current_schema()",
                    [self.prefix],
                )
            else:
                cursor.execute(
                    "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' AND substr(name, 1, %s) = %s",
                    [len(self.prefix), self.prefix],
                )
            return dict(cursor.fetchall())


def _place(name: str) -> str:
    return name.rpartition("_")[0]


def _drop(connection: BaseDatabaseWrapper, name: str, table: str) -> str:
    return f'DROP TRIGGER "{name}" ON "{table}"' if connection.vendor == "postgresql" else f'DROP TRIGGER "{name}"'
