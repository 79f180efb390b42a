"""Rows that go from SQLite to PostgreSQL: what is refused, and that PostgreSQL is then as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.db import connection

from operation.backup import from_sqlite, postgresql, service
from operation.backup.archive import BackupError
from operation.setup.steps import Steps
from tenancy.models import Tenant
from tests.databases import sqlite_template
from tests.operation.backup.test_restore import manifest_of
from tests.stack.stack import migrate

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]

SHOW = Steps(StringIO())


def columns_of(table):
    with connection.cursor() as cursor:
        return [column.name for column in connection.introspection.get_table_description(cursor, table)]


def database(place, table, columns, row):
    with closing(sqlite3.connect(place)) as made, made:
        made.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        made.execute("CREATE TABLE numbered (n INTEGER PRIMARY KEY AUTOINCREMENT)")  # so that SQLite keeps numbers
        made.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()])
    return place


@pytest.fixture
def numbers(db):
    """Gives each sequence the number back that it had: setting one isn't undone with its transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT format('%I.%I', schemaname, sequencename), last_value FROM pg_sequences")
        before = [(name, last) for name, last in cursor.fetchall() if last is not None]
    yield
    with connection.cursor() as cursor:
        cursor.executemany("SELECT setval(%s, %s)", before)


@pytest.fixture
def copied(monkeypatch, tmp_path, numbers):
    """Copy a SQLite database with one row of a table; PostgreSQL's tables are there, and one tenant in them."""
    monkeypatch.setattr(postgresql, "be_alone", lambda _: None)
    monkeypatch.setattr(postgresql, "DROP_ALL", "SELECT 1")
    monkeypatch.setattr(from_sqlite, "call_command", lambda *_, **__: None)
    Tenant.objects.create(name="Former", slug="former")

    def copy(row, columns=None, table="gateway_tenant"):
        place = database(tmp_path / "made", table, columns or columns_of("gateway_tenant"), row)
        from_sqlite.copy(place, {}, SHOW)

    return copy


TENANT = {
    "id": "0" * 31 + "1",
    "name": "Ä",
    "slug": "new",
    "is_active": 1,
    "created_at": "2026-01-31 23:59:59.000001",
    "response_storage": "allowed",
    "hosted_tools": "allowed",
}


def test_values_are_what_they_were(copied):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Asia/Tokyo'")  # whatever a session has
    copied(TENANT)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")  # as Django reads
    [tenant] = Tenant.objects.all()
    assert (tenant.id.int, tenant.name, tenant.is_active) == (1, "Ä", True)
    assert tenant.created_at.isoformat() == "2026-01-31T23:59:59.000001+00:00"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "a\0b"}, "NUL"),
        ({"name": "a" * 121}, "too long.*, column name"),
        ({"slug": None}, 'null value in column "slug"'),
        ({"created_at": "no moment"}, "invalid input syntax"),
    ],
)
def test_a_value_that_postgresql_cannot_keep_changes_nothing(copied, change, reason):
    with pytest.raises(
        BackupError, match=f"a row of gateway_tenant can't go to PostgreSQL, which is as it was: .*{reason}"
    ):
        copied({**TENANT, **change})
    assert Tenant.objects.get().slug == "former"


def test_the_tables_of_an_extension_stay(copied):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE theirs AS SELECT 1; ALTER EXTENSION plpgsql ADD TABLE theirs")
        copied(TENANT)
        cursor.execute("SELECT count(*) FROM theirs")
        assert cursor.fetchone() == (1,)


def test_a_duration_is_what_it_was(copied):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE lasting (took interval)")
        copied({"took": 1_500_000}, ["took"], "lasting")
        cursor.execute("SELECT took FROM lasting")
        assert cursor.fetchone() == (timedelta(seconds=1.5),)


def test_rows_that_would_be_lost_are_refused(copied):
    with pytest.raises(BackupError, match="the table gateway_former of the backup isn't as this version"):
        copied({"id": 1}, ["id"], "gateway_former")
    assert Tenant.objects.get().slug == "former"


def test_a_table_with_another_column_is_refused(copied):
    with pytest.raises(BackupError, match="gateway_tenant of the backup isn't"):
        copied(TENANT, [*columns_of("gateway_tenant"), "colour"])


def test_rows_that_did_not_arrive_are_missed(copied, monkeypatch):
    monkeypatch.setattr(from_sqlite._Copy, "_copy", lambda *_: None)
    with pytest.raises(BackupError, match="gateway_tenant has 1 rows in the backup, and 0 of them came"):
        copied(TENANT)
    assert Tenant.objects.get().slug == "former"


def test_a_reference_to_nothing_is_refused(copied):
    row = {"id": "0" * 31 + "2", "tenant_id": "0" * 31 + "3", "name": "Default", "is_active": 1}
    row["created_at"] = TENANT["created_at"]
    with pytest.raises(BackupError, match="violates foreign key"):
        copied(row, columns_of("gateway_project"), "gateway_project")


def test_migrations_that_make_an_index_beside_others_may_run_in_our_transaction(db):
    statement = "CREATE INDEX CONCURRENTLY beside ON gateway_tenant (name)"
    with connection.execute_wrapper(from_sqlite._for_nobody), connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'beside'")
        assert cursor.fetchone() is not None


def test_only_an_older_backup_is_migrated_first(monkeypatch, tmp_path):
    done = []
    monkeypatch.setattr(connection, "close_pool", lambda: None)
    monkeypatch.setattr(service.connections, "close_all", lambda: None)
    monkeypatch.setattr(from_sqlite, "upgrade", lambda _: done.append("migrated"))
    monkeypatch.setattr(from_sqlite, "copy", lambda *_: done.append("copied"))
    applied = service._applied()
    service._restore(manifest_of(database="sqlite", migrations=applied), tmp_path, SHOW)
    applied["gateway"].pop()
    service._restore(manifest_of(database="sqlite", migrations=applied), tmp_path, SHOW)
    assert done == ["copied", "migrated", "copied"]


@pytest.mark.sweep
def test_an_older_database_is_migrated(tmp_path):
    place, last = tmp_path / "with a space", ("routing", "0004_adapters_of_only_projects")
    shutil.copyfile(sqlite_template(Path(os.environ["SLUICE_HOME"]), lambda path: migrate(f"sqlite:///{path}")), place)
    with closing(sqlite3.connect(place)) as made:
        with made:
            made.execute("DELETE FROM django_migrations WHERE app = ? AND name = ?", last)
        from_sqlite.upgrade(place)
        found = made.execute("SELECT count(*) FROM django_migrations WHERE app = ? AND name = ?", last).fetchone()
    assert found == (1,)
    place.write_text("no database")
    with pytest.raises(BackupError, match=r"can't be brought up to date: .*not a database"):
        from_sqlite.upgrade(place)
