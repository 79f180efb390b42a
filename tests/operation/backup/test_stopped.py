"""A backup or restore that is stopped, or was killed a day ago, leaves no copy of the secrets and the database."""

from __future__ import annotations

import os
import signal
import time

import pytest
from django.core.management import call_command

from base.home import FORGOTTEN_SECONDS
from operation.backup import service, sqlite
from operation.backup.archive import BACKUP, RESTORE, work_folder


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """The signals that came to whoever had them before the command."""
    came = []
    handlers = {number: signal.signal(number, lambda *_: came.append(1)) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr("operation.management.commands.backup.need_database", lambda: None)
    yield came
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def place(settings, tmp_path):
    settings.SLUICE_HOME = tmp_path / "home"
    settings.SLUICE_HOME.mkdir()
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.mark.django_db
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_backup_that_is_stopped_leaves_nothing(place, heard, monkeypatch, number):
    def dump(path):
        path.write_text("rows")
        signal.raise_signal(number)

    monkeypatch.setattr(service, "_dump", dump)
    with pytest.raises(SystemExit, match="no backup was made"):
        call_command("backup", str(place))
    assert list(place.iterdir()) == []
    assert not heard
    signal.raise_signal(number)
    assert heard, "its former handler is back"


@pytest.mark.django_db
def test_a_backup_that_is_stopped_as_the_archive_is_written_leaves_nothing(place, monkeypatch):
    def stored():
        signal.raise_signal(signal.SIGTERM)
        yield "never", 0, None

    monkeypatch.setattr(service, "_dump", lambda path: path.write_text("rows"))
    monkeypatch.setattr(service.tenants_files, "Stored", stored)
    with pytest.raises(SystemExit):
        call_command("backup", str(place))
    assert list(place.iterdir()) == []


def test_a_restore_that_is_stopped_leaves_the_home_as_it_was(settings, place, monkeypatch):
    def read(source, folder):
        (folder / "0").write_text("rows")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(service, "_alone", lambda: sqlite.alone(place / "a.sqlite3"))
    monkeypatch.setattr(service.archive, "read", read)
    with pytest.raises(SystemExit, match="run it again"):
        call_command("restore", str(place / "archive"))
    assert list(settings.SLUICE_HOME.iterdir()) == []


def test_there_is_a_database_whenever_a_restore_is_stopped(place, monkeypatch):
    database, dumped = place / "a.sqlite3", place / "dump"
    for path in (database, dumped):
        with sqlite.closing(sqlite.sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE rows (id)")

    def rename(self, target):
        assert database.exists()
        raise SystemExit

    monkeypatch.setattr(sqlite.Path, "rename", rename)
    with pytest.raises(SystemExit):
        sqlite.restore(dumped, database)
    assert sqlite.has_tables(database)
    assert not list(place.glob(".*"))


def test_what_killed_ones_left_goes_a_day_later(place):
    old = time.time() - FORGOTTEN_SECONDS - 60
    folders = [place / f"{BACKUP}{name}" for name in ("dead", "works", "young")]
    for folder in folders:
        folder.mkdir()
        (folder / "secrets.json").write_text("all")
    draft, other = place / ".sluice-20260101T000000Z.tar.gz.7", place / "sluice-20260101T000000Z.tar.gz"
    elsewhere = place.parent / "of others"
    elsewhere.mkdir()
    (place / f"{BACKUP}link").symlink_to(elsewhere)
    for path in (draft, other):
        path.write_text("all")
    for path in (draft, other, folders[0] / "secrets.json", folders[0], folders[1], elsewhere):
        os.utime(path, (old, old))
    os.utime(place / f"{BACKUP}link", (old, old), follow_symlinks=False)
    with work_folder(place, RESTORE):
        assert folders[0].exists(), "of another kind"
    with work_folder(place, BACKUP) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    left = {path.name.removeprefix(BACKUP) for path in place.iterdir()}
    assert left == {other.name, "works", "young", "link"}
    assert elsewhere.exists()
