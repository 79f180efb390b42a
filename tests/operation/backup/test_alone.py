"""On SQLite a restore is alone with the database: it begins beside no jobs, and no jobs begin beside it."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing.jobs import Job
from operation.backup import service, sqlite
from operation.backup.archive import BackupError
from operation.celery import signals
from operation.jobs import tasks
from operation.jobs_lock import JobsLock, JobsLockedError
from operation.setup.steps import Steps


@pytest.fixture
def database(settings, tmp_path, monkeypatch):
    settings.SLUICE_EMBEDDED = True
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", str(tmp_path / "a.sqlite3"))
    return tmp_path / "a.sqlite3"


def begin_restore(database):
    with sqlite.alone(database):
        pass


def test_nobody_works_beside_a_restore(database):
    with sqlite.alone(database), pytest.raises(JobsLockedError, match="is being restored"):
        JobsLock.share(database)
    first, second = JobsLock.share(database), JobsLock.share(database)
    first.release()
    with pytest.raises(BackupError, match="in use by jobs"):
        begin_restore(database)
    second.release()
    begin_restore(database)


def test_a_worker_of_celerys_keeps_the_database(database, settings, monkeypatch):
    settings.REDIS_URL = "redis://127.0.0.1"
    monkeypatch.setattr("operation.schema.need_database", lambda: None)
    [lock] = [response for _, response in signals.worker_init.send(sender=None) if isinstance(response, JobsLock)]
    with pytest.raises(BackupError, match="in use by jobs"):
        begin_restore(database)
    lock.release()
    with sqlite.alone(database), pytest.raises(SystemExit, match="is being restored"):
        signals.worker_init.send(sender=None)


def test_what_cron_runs_keeps_the_database_while_it_runs(database, monkeypatch):
    done = []

    def look():
        with pytest.raises(BackupError, match="in use by jobs"):
            begin_restore(database)
        done.append(1)

    monkeypatch.setattr(tasks, "JOBS", [Job("look", look, every_s=1)])
    monkeypatch.setattr("operation.jobs.states.noted", lambda _, run: run())
    monkeypatch.setattr("operation.management.commands.jobs.need_database", lambda: None)
    call_command("jobs", "--once")
    assert done
    with sqlite.alone(database), pytest.raises(CommandError, match="is being restored"):
        call_command("jobs", "--once")


def test_a_restore_is_refused_before_it_reads_anything(database, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "_alone", lambda: sqlite.alone(database))
    lock = JobsLock.share(database)
    with pytest.raises(BackupError, match="stop them first"):
        service.restore(tmp_path / "no-such-archive", Steps(StringIO()), replace=False)
    lock.release()
