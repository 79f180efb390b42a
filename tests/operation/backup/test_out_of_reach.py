"""Where a backup or restore can't be made because of the machine, one line says what to do, and nothing is left."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest
from django.core.management import CommandError, call_command

from operation.backup import postgresql, service, sqlite
from operation.backup.archive import BackupError
from tests.services.ports import lease_port


@pytest.fixture
def home(settings, monkeypatch, tmp_path):
    settings.SLUICE_HOME = tmp_path / "home"
    settings.SLUICE_HOME.mkdir()
    monkeypatch.setattr("operation.management.commands.backup.need_database", lambda: None)
    monkeypatch.setattr(service, "_dump", lambda path: path.write_text("rows"))
    monkeypatch.setattr(service, "_alone", lambda: sqlite.alone(tmp_path / "a.sqlite3"))
    return settings.SLUICE_HOME


def said(*command):
    with pytest.raises(CommandError) as caught:
        call_command(*command)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_target_where_nothing_can_be_made(home):
    assert "the backup can't be written to /proc/x.tar.gz: No such file" in said("backup", "/proc/x.tar.gz")


def test_a_folder_that_is_not_there_is_no_name_of_a_file(home, tmp_path):
    assert f"no folder {tmp_path / 'backups'}: make it, or name a new file" in said("backup", str(tmp_path / "backups"))
    assert not (tmp_path / "backups").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("error", [FULL, sqlite3.OperationalError("database or disk is full")])
def test_a_full_target(home, monkeypatch, tmp_path, error):
    target = tmp_path / "target"
    target.mkdir()
    monkeypatch.setattr(service, "_dump", fail_with(error))
    assert f"can't be written to {target}" in (line := said("backup", str(target)))
    assert "make room there" in line
    assert list(target.iterdir()) == []


@pytest.fixture
def made(home, tmp_path, transactional_db):
    target = tmp_path / "made.tar.gz"
    call_command("backup", str(target))
    return target


@pytest.mark.parametrize("place", ["copyfileobj", "copyfile"])
def test_a_home_without_room_for_what_is_restored(home, made, monkeypatch, place):
    monkeypatch.setattr(service, "_has_tables", lambda: False)
    monkeypatch.setattr(service, "_restore", lambda _, path, __: sqlite.shutil.copyfile(path, home / "a.sqlite3"))
    monkeypatch.setattr(f"shutil.{place}", fail_with(FULL))
    before = list(home.iterdir())
    assert "No space left" in said("restore", str(made))
    assert list(home.iterdir()) == before


def test_a_postgresql_that_is_away(tmp_path):
    parameters = {"host": "127.0.0.1", "port": lease_port(), "dbname": "x", "user": "u", "password": "p"}
    is_away = r"can't be reached: .*: start it, or correct DATABASE_URL"
    with pytest.raises(BackupError, match=is_away):
        postgresql.has_tables(parameters)
    with pytest.raises(BackupError, match=is_away):
        postgresql.restore(tmp_path / "dump", parameters)


def test_a_folder_of_the_database_that_is_not_there(tmp_path):
    with (
        pytest.raises(BackupError, match="make that folder, or correct DATABASE_URL"),
        sqlite.alone(tmp_path / "none" / "a.sqlite3"),
    ):
        pass


def test_a_damaged_database_is_moved_away_by_hand(tmp_path):
    database, dumped = tmp_path / "a.sqlite3", tmp_path / "dump"
    database.write_text("a letter" * 1000)
    with sqlite.closing(sqlite3.connect(dumped)) as connection:
        connection.execute("CREATE TABLE rows (id)")
    for use in (lambda: sqlite.has_tables(database), lambda: sqlite.restore(dumped, database)):
        with pytest.raises(BackupError, match=r"not a database.*move .*a\.sqlite3-shm away first"):
            use()
    assert {path.name for path in tmp_path.iterdir()} == {"a.sqlite3", "dump"}
