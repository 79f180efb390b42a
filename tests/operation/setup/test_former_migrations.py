"""Migrations and models agree; a database that the former migrations made goes on if it has all of them."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from gateway.runtime import epoch_triggers
from operation.setup.former_migrations import APPS, LAST, take_over

pytestmark = [pytest.mark.money, pytest.mark.django_db]
FIRST = {(app, "0001_initial") for app in APPS}
INITIAL = {*FIRST, ("billing", "0002_initial")}
FORMER = {*FIRST, ("gateway", "0002_proved_addresses"), *LAST}


def recorded():
    return {(app, name) for app, name in MigrationRecorder(connection).applied_migrations() if app in APPS}


def record(migrations):
    recorder = MigrationRecorder(connection)
    recorder.migration_qs.filter(app__in=APPS).delete()
    for app, name in migrations:
        recorder.record_applied(app, name)


def unapplied():
    """The initial migrations that are due; those behind them are due after any take-over."""
    executor = MigrationExecutor(connection)
    due = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [migration.name for migration, _ in due if migration.initial]


def columns(table):
    with connection.cursor() as cursor:
        return {column.name for column in connection.introspection.get_table_description(cursor, table)}


@pytest.fixture
def former_tables():
    """Tables as the former migrations made them: with two columns that no model has, and triggers that read them."""
    identity = "char(32)" if connection.vendor == "sqlite" else "uuid"
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE gateway_apikey ADD COLUMN parent_id {identity} NULL REFERENCES gateway_apikey (id)"
        )
        cursor.execute("CREATE INDEX gateway_apikey_parent_id_8f40e905 ON gateway_apikey (parent_id)")
        cursor.execute("ALTER TABLE routing_routerule ADD COLUMN holds_answers bool DEFAULT false NOT NULL")
        epoch_triggers.EPOCH_TRIGGERS.drop(connection)
        for table, column in (("gateway_apikey", "parent_id"), ("routing_routerule", "holds_answers")):
            trigger = epoch_triggers._statement(connection.vendor, table, "update", [column], "")
            cursor.execute(trigger.replace("{name}", f"epoch_{table}_update_former"))


def test_models_and_migrations_agree():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.usefixtures("former_tables")
def test_all_former_migrations_are_taken_for_the_initial_ones():
    record(FORMER)
    assert unapplied() == ["0002_initial"]  # so that nothing starts before `setup`
    for _ in range(2):
        take_over()
        assert recorded() == INITIAL
        assert unapplied() == []
        assert "parent_id" not in columns("gateway_apikey")
        assert "holds_answers" not in columns("routing_routerule")
        assert epoch_triggers.missing() == []


@pytest.mark.parametrize("lacking", sorted(LAST))
def test_where_some_are_missing_nothing_is_taken_over(lacking):
    record(FORMER - {lacking})
    with pytest.raises(CommandError, match=r"some of them are missing: first run `manage\.py setup` of commit"):
        take_over()
    assert recorded() == FORMER - {lacking}
    assert unapplied() != []


def test_former_first_migrations_are_told_from_those_of_now_by_what_they_made(monkeypatch):
    record(FIRST)
    take_over()  # the initial ones, stopped halfway: `migrate` goes on
    made = set(connection.introspection.table_names()) - {"gateway_auditevent"}
    monkeypatch.setattr(connection.introspection, "table_names", lambda *_: made)
    for former in (FIRST, {("routing", "0001_initial")}):
        record(former)
        with pytest.raises(CommandError, match="some of them are missing"):
            take_over()
        assert recorded() == former


@pytest.mark.parametrize("migrations", [set(), INITIAL, {*INITIAL, ("routing", "0002_of_a_newer_release")}])
def test_other_databases_are_left_alone(migrations):
    record(migrations)
    take_over()
    assert recorded() == migrations
