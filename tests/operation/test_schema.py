"""A database that this code can't work on is refused everywhere in one sentence; one that is served is left alone."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from celery import signals
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations import Migration, RunSQL
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from base.database import connections as policy
from base.ids import uuid7
from gateway.runtime import gateway_lock
from operation import celery, schema
from operation.jobs_lock import JobsLock

LASTING = ("gateway", "jobs", "serve", "worker", "backup", "migrate", "setup")
NEWER = r"migrated by a newer Sluice \(billing\.9999_to_come isn't known here\): start that version"


@pytest.fixture
def newer():
    MigrationRecorder(connection).record_applied("billing", "9999_to_come")
    yield
    MigrationRecorder(connection).record_unapplied("billing", "9999_to_come")


class ToCome(Migration):
    """The migration after the last one."""

    operations = [RunSQL("CREATE TABLE to_come (id integer)")]


@pytest.fixture
def older(monkeypatch):
    """A database that lacks the last migration: one to come. Those that are there aren't undone, which no
    installation does.
    """
    of_files = MigrationLoader.load_disk

    def load_disk(loader):
        of_files(loader)
        one = ToCome("9999_to_come", "gateway")
        one.dependencies = [max(key for key in loader.disk_migrations if key[0] == "gateway")]
        loader.disk_migrations["gateway", one.name] = one

    monkeypatch.setattr(MigrationLoader, "load_disk", load_disk)
    yield
    MigrationRecorder(connection).record_unapplied("gateway", "9999_to_come")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS to_come")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("command", LASTING)
def test_a_newer_database_is_refused_for_good(command, tmp_path):
    target = [str(tmp_path)] if command == "backup" else []
    with pytest.raises(CommandError, match=NEWER) as refused:
        call_command(command, *target)
    assert refused.value.returncode == os.EX_CONFIG


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("found", "ends"), [("newer", (78, "newer Sluice")), ("older", (1, "migrations not applied: run "))]
)
def test_celerys_worker_begins_on_no_other_schema(request, settings, capsys, found, ends):
    settings.REDIS_URL, settings.SLUICE_EMBEDDED = "redis://127.0.0.1", False  # no lock of a process that goes on
    request.getfixturevalue(found)
    with pytest.raises(SystemExit) as ended:
        signals.worker_init.send(sender=celery.app)
    code, said = ends
    assert ended.value.code == code
    assert said in capsys.readouterr().err


def set_up(**options):
    call_command("setup", verbosity=0, **options)


# -- what serves --------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_on_sqlite_nothing_is_migrated_beside_a_gateway_or_jobs(older, request):
    database = Path(connection.settings_dict["NAME"])
    for lock, said in ((gateway_lock.FileLock.take, "already served by process"), (JobsLock.share, "in use by jobs")):
        held = lock(database)
        with pytest.raises(CommandError, match=f"has to be migrated: .*{said}"):
            set_up()
        held.release()
    with pytest.raises(CommandError, match="--while-serving needs PostgreSQL"):
        set_up(while_serving=True)
    assert schema.look().is_due
    set_up()
    assert not schema.look().problem


@pytest.mark.django_db(transaction=True)
def test_where_nothing_is_due_a_set_up_may_be_done_while_all_serve():
    held = gateway_lock.FileLock.take(Path(connection.settings_dict["NAME"]))
    set_up()
    held.release()


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("older")
def test_on_postgresql_a_gateway_is_migrated_beside_only_when_that_is_meant():
    lock = gateway_lock.SessionLock(connection.settings_dict, uuid7(), is_shared=True)
    with asyncio.Runner() as runner:
        runner.run(lock.take())
        with pytest.raises(CommandError, match=f"{policy.session_name()} at 127.0.0.1 serves it: .* --while-serving"):
            set_up()
        assert schema.look().is_due
        set_up(while_serving=True)
        runner.run(lock.close())
    assert not schema.look().problem


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_one_sets_up_at_a_time_and_no_gateway_begins_meanwhile(monkeypatch):
    monkeypatch.setattr(gateway_lock, "TRIES", 1)
    with schema.alone():
        with pytest.raises(CommandError, match="another `setup` is at work"), schema.alone(while_serving=True):
            pass
        with pytest.raises(gateway_lock.GatewayRunningError):
            asyncio.run(gateway_lock.take_lock(connection.settings_dict, uuid7(), is_shared=True))


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_limits_hold_after_a_migration_which_has_others():
    def limits():
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, setting, reset_val FROM pg_settings WHERE name = ANY(%s)", [[*policy.SERVER]])
            return {name: (setting, reset) for name, setting, reset in cursor.fetchall()}

    policy.limit_migration()
    assert limits()["lock_timeout"] == ("1000", "10000")
    assert limits()["statement_timeout"] == ("0", "30000")
    call_command("migrate", verbosity=0)
    assert all(setting == reset != "0" for setting, reset in limits().values())


# -- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_two_addresses_are_of_one_database(monkeypatch):
    given = connection.settings_dict
    monkeypatch.setitem(given, "DIRECT", {**given, "NAME": "postgres"})
    assert "are two databases: set SLUICE_DIRECT_DATABASE_URL" in schema.database_problem()
    monkeypatch.setitem(given, "DIRECT", {**given})
    assert schema.database_problem() == ""


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_each_session_says_whose_it_is():
    arguments = policy.session_arguments(connection.settings_dict, "writer")
    with closing(psycopg.connect(**arguments)) as session, connection.cursor() as cursor:
        cursor.execute("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        assert cursor.fetchone() == (f"sluice {policy.command()} {os.getpid()}",)
        assert session.info.parameter_status("application_name") == f"sluice {policy.command()} {os.getpid()} writer"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["manage.py", "gateway", "--fd", "3"], "gateway"),
        (["/opt/sluice/manage.py", "jobs"], "jobs"),
        (["/opt/venv/bin/celery", "-A", "operation", "worker"], "celery"),
        (["/venv/lib/celery/__main__.py", "worker"], "celery"),
        (["/usr/bin/pytest"], "python"),
        (["manage.py"], "python"),
        ([""], "python"),
    ],
)
def test_the_command_of_a_process(monkeypatch, argv, command):
    monkeypatch.setattr("sys.argv", argv)
    assert policy.command() == command


FOUND = {"ENGINE": "django.db.backends.postgresql", "NAME": "sluice", "HOST": "pooler", "OPTIONS": {}}
DIRECT = {**FOUND, "HOST": "server"}


@pytest.mark.parametrize(
    ("command", "host", "most"),
    [
        *(("gateway", "pooler", 16), ("worker", "pooler", 1), ("serve", "pooler", 1)),
        *((command, "server", 16) for command in ("setup", "drill", "tenants", "people")),
    ],
)
def test_behind_a_pooler_only_what_needs_a_session_goes_past_it(monkeypatch, command, host, most):
    monkeypatch.setattr("sys.argv", ["manage.py", command])
    given = policy.settings_of(FOUND, pool=16, direct=DIRECT)
    assert (given["HOST"], given["OPTIONS"]["pool"]["max_size"]) == (host, most)
    assert ("options" in given["OPTIONS"]) == (host == "server")
    assert given.get("DISABLE_SERVER_SIDE_CURSORS", False) == (host == "pooler")
    own = policy.session_arguments(given, "writer", "-c jit=off")
    assert own["host"] == "server"
    assert own["options"].endswith("-c jit=off")
    assert "statement_timeout" in own["options"]
    assert "pool" not in own
