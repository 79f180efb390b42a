"""What migrations may do, by their operations; and each one, as it is, beside a reader that holds every table."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from copy import deepcopy

import psycopg
import pytest
from django.contrib.postgres.functions import RandomUUID
from django.core.management import CommandError
from django.db import connection, connections, models, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.migrations import (
    AddConstraint,
    AddField,
    AddIndex,
    AlterField,
    CreateModel,
    DeleteModel,
    Migration,
    RemoveConstraint,
    RemoveField,
    RemoveIndex,
    RenameField,
    RunPython,
    RunSQL,
)
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from psycopg import sql

from base.database import connections as policy
from base.database.operations import AddIndexBeside
from operation import schema

APPS = ("billing", "gateway", "routing")
BEFORE_THE_FIRST_TAG = {("gateway", "0004_notices_last", "AddIndex")}


# -- what a migration may do --------------------------------------------------------------------------------------


def findings(migration, before):
    """What of a migration breaks code of the release before, or keeps a table from others for long: `UPGRADING.md`.

    A migration that contracts says of which release the code was that still used it: `contracts = "0.1.0"`.
    """
    may_contract = bool(getattr(migration, "contracts", ""))
    made, added = set(), set()
    for operation in migration.operations:
        kind = type(operation).__name__
        model = getattr(operation, "model_name_lower", "")
        if isinstance(operation, CreateModel):
            made.add(operation.name_lower)
        elif model in made or isinstance(operation, RunPython | RemoveIndex | RemoveConstraint | AddIndexBeside):
            pass
        elif isinstance(operation, AddField):
            field = operation.field
            added.add(operation.name)
            if not (field.null or field.many_to_many or field.has_db_default()):
                yield kind, f"{model}.{operation.name} needs null=True or db_default: code of before doesn't fill it"
        elif isinstance(operation, AddIndex):
            yield kind, f"{operation.index.name} keeps writers waiting while it is made: AddIndexBeside"
        elif isinstance(operation, AddConstraint):
            if not added & set(names_in(operation.constraint)):
                yield kind, f"{operation.constraint.name} may refuse what code of before writes"
        elif isinstance(operation, AlterField):
            field = before.models[migration.app_label, model].fields[operation.name]
            if differs(field, operation.field) and not may_contract:
                yield kind, f"{model}.{operation.name} is another column then"
        elif not may_contract:
            yield kind, "code of the release before may still use it: set `contracts` in the release after that"


def names_in(constraint):
    """The fields that a constraint names."""
    _, _, given = constraint.deconstruct()

    def walk(part):
        if isinstance(part, models.Q | tuple | list):
            for child in part.children if isinstance(part, models.Q) else part:
                yield from walk(child)
        elif isinstance(part, str):
            yield part.partition("__")[0]

    yield from walk([given.get("condition", ()), *given.get("fields", ())])


def differs(old, new):
    """Whether the columns of two fields differ, but that the new one holds more."""
    one, other = (field.deconstruct()[1:] for field in (old, new))
    attributes = ("null", "unique", "to", "db_column", "primary_key", "db_default", "decimal_places")
    if one[0] != other[0] or any(one[2].get(name) != other[2].get(name) for name in attributes):
        return True
    return (new.max_length or 0) < (old.max_length or 0)


def test_each_migration_only_expands_and_keeps_no_table():
    loader = MigrationLoader(None)
    found, looked = set(), 0
    for (app, name), migration in loader.disk_migrations.items():
        if app in APPS and not migration.initial:
            looked += 1
            before = loader.project_state((app, name), at_end=False)
            found |= {(app, name, kind) for kind, _ in findings(migration, before)}
    assert looked > 8
    assert found == BEFORE_THE_FIRST_TAG


TEXT = models.CharField(max_length=9)
AT_MOST = models.CheckConstraint(condition=models.Q(posted__lte=9), name="c")
OF_NEW = models.CheckConstraint(condition=models.Q(new=None) | models.Q(new__gt=0), name="c")
NEW = AddField("wallet", "new", models.IntegerField(null=True))


@pytest.mark.parametrize(
    ("kinds", "operations"),
    [
        ([], [NEW, AddConstraint("wallet", OF_NEW)]),
        ([], [AddField("wallet", "new", models.CharField(db_default="", max_length=9))]),
        ([], [CreateModel("New", [("id", models.UUIDField(db_default=RandomUUID()))]), AddField("new", "own", TEXT)]),
        ([], [RunPython(RunPython.noop), AddIndexBeside("wallet", models.Index(fields=["held"], name="i"))]),
        ([], [AlterField("plan", "name", models.CharField(max_length=500))]),
        (["AddField"], [AddField("wallet", "new", TEXT)]),
        (["AddIndex"], [AddIndex("wallet", models.Index(fields=["held"], name="i"))]),
        (["AddConstraint"], [AddConstraint("wallet", AT_MOST)]),
        (["AlterField"], [AlterField("plan", "name", models.CharField(max_length=5))]),
        (["AlterField"], [AlterField("plan", "name", models.TextField())]),
        (["RemoveField", "RenameField"], [RemoveField("wallet", "held"), RenameField("wallet", "posted", "held")]),
        (["DeleteModel", "RunSQL"], [DeleteModel("Plan"), RunSQL("DROP TABLE billing_plan")]),
    ],
)
def test_what_is_found_of_a_migration(kinds, operations):
    before = MigrationLoader(None).project_state(("billing", "0006_budgets_of_records"))
    migration = type("Synthetic", (Migration,), {"operations": operations})("0007", "billing")
    assert [kind for kind, _ in findings(migration, before)] == kinds
    migration.contracts = "0.1.0"
    contracting = {"RemoveField", "RenameField", "DeleteModel", "RunSQL", "AlterField"}
    assert [kind for kind, _ in findings(migration, before)] == [kind for kind in kinds if kind not in contracting]


# -- beside a reader ----------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Give way after a moment, and try again after another."""
    monkeypatch.setitem(policy.MIGRATING, "lock_timeout", "'100ms'")
    monkeypatch.setattr(schema, "PAUSE_S", 0.05)


class InThreads:
    """A database, and what threads do to it as to the default one."""

    def __init__(self, given, name=""):
        self.name = name or given["NAME"]
        self._settings = deepcopy(given) | {"NAME": self.name}
        self._settings["OPTIONS"].pop("pool", None)

    def session(self, **options):
        return psycopg.connect(**policy.session_arguments(self._settings, "test"), **options)

    def begin(self, change):
        """Do `change` in a thread; return the thread, what it tells, and what it raised."""
        told, raised = [], []

        def run():
            wrapper = connections["default"] = DatabaseWrapper(self._settings, self.name)
            connections[self.name] = wrapper
            try:
                policy.limit_migration()
                schema.patiently(change, told.append)
            except Exception as error:  # noqa: BLE001 - the test's
                raised.append(error)
            finally:
                wrapper.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread, told, raised

    def do(self, change):
        """Do it and wait for its end."""
        thread, _, raised = self.begin(change)
        thread.join()
        assert raised == []


def applying(*keys):
    """A change: those migrations are applied."""

    def change():
        executor = MigrationExecutor(connections["default"])
        executor.migrate([], [(executor.loader.get_migration(*key), False) for key in keys])

    return change


def in_order():
    """All migrations, each with whether it is one of ours behind the initial ones."""
    loader = MigrationLoader(None)
    for key in loader.graph._generate_plan(loader.graph.leaf_nodes(), at_end=True):
        yield key, key[0] in APPS and not loader.get_migration(*key).initial


@pytest.fixture
def fresh(django_db_blocker):
    """A database as the initial migrations leave it."""
    made = InThreads(connection.settings_dict, f"migrating_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(**policy.session_arguments(connection.settings_dict, "test"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(made.name)))
        with django_db_blocker.unblock():
            made.do(applying(*(key for key, is_new in in_order() if not is_new)))
            yield made
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(made.name)))


TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND %s = ANY(pg_blocking_pids(pid))"
PATIENCE = 100


@contextlib.contextmanager
def reader_of_all(fresh):
    """A transaction that reads every table, as a dump does."""
    with fresh.session() as reader:
        reader.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        tables = [name for [name] in reader.execute(TABLES).fetchall()]
        for name in tables:
            reader.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(name)))
        yield reader.info.backend_pid, tables


def is_waiting(fresh, thread, reader):
    """Whether the change waits for the reader, once it does or has ended."""
    with fresh.session(autocommit=True) as watching:
        until = time.monotonic() + PATIENCE
        while thread.is_alive() and time.monotonic() < until:
            if watching.execute(BLOCKED, [reader]).fetchone() != (0,):
                return True
        return False


def everybody_else(fresh, tables):
    """Read and write every table once; LockNotAvailable where one is to be had only after the reader."""
    with fresh.session(autocommit=True) as other:
        other.execute("SET lock_timeout = '20s'")
        for name in tables:
            table = sql.Identifier(name)
            other.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(table))
            other.execute(sql.SQL("DELETE FROM {} WHERE false").format(table))


def beside(fresh, change):
    """Do the change beside a reader, and everything else beside both; return whether it waited for the reader."""
    with reader_of_all(fresh) as (reader, tables):
        thread, _, raised = fresh.begin(change)
        if waited := is_waiting(fresh, thread, reader):
            everybody_else(fresh, tables)
            assert thread.is_alive()  # it is still to be done, and the reader still reads
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert raised == []
    return waited


@pytest.mark.postgresql
@pytest.mark.usefixtures("quick", "db")
def test_each_new_migration_gives_way_beside_a_reader_that_holds_every_table(fresh):
    waited = {key for key, is_new in in_order() if is_new and beside(fresh, applying(key))}
    with fresh.session() as session:
        applied = set(session.execute("SELECT app, name FROM django_migrations").fetchall())
    assert {key for key, _ in in_order()} == applied
    assert {("gateway", "0002_hosted_tools"), ("billing", "0006_budgets_of_records")} <= waited
    assert ("routing", "0004_adapters_of_only_projects") not in waited


@pytest.mark.postgresql
@pytest.mark.usefixtures("quick", "db")
def test_an_index_made_beside_is_made_once_and_one_that_is_not_valid_anew(fresh):
    keys = [key for key, is_new in in_order() if is_new]
    fresh.do(applying(*keys))
    name = "SELECT indexrelid FROM pg_index WHERE indexrelid = to_regclass(%s) AND indisvalid"
    with fresh.session(autocommit=True) as session:

        def again():
            session.execute("DELETE FROM django_migrations WHERE name = '0007_indexes_beside'")
            fresh.do(applying(("billing", "0007_indexes_beside")))
            return session.execute(name, [index]).fetchone()

        index = MigrationLoader(None).get_migration("billing", "0007_indexes_beside").operations[0].index.name
        made = session.execute(name, [index]).fetchone()
        assert again() == made is not None
        session.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s", made)
        assert again() not in {made, None}


@pytest.mark.postgresql
@pytest.mark.usefixtures("quick", "db")
def test_a_table_that_stays_in_use_ends_a_change_which_says_by_whom(monkeypatch):
    monkeypatch.setattr(schema, "TRIES", 2)

    used = InThreads(connection.settings_dict)

    def change():
        wrapper = connections["default"]
        with transaction.atomic(using=wrapper.alias), wrapper.cursor() as cursor:
            cursor.execute("LOCK TABLE billing_hold IN ACCESS EXCLUSIVE MODE")

    with reader_of_all(used):
        thread, told, raised = used.begin(change)
        thread.join(PATIENCE)
    [error] = raised
    assert isinstance(error, CommandError)
    assert f"{policy.session_name('test')} at 127.0.0.1 since" in str(error)
    assert "100ms at a time" in told[0]
    used.do(change)
