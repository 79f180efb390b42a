"""What is kept belongs to its owner alone, and a full disk is known before a charge can't be written."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from base import home
from operation.checks.checks import examine

ROOT = Path(__file__).resolve().parents[2]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def older(settings, monkeypatch, tmp_path):
    """A home as an earlier version left it, readable by all."""
    settings.SLUICE_HOME = tmp_path
    database = tmp_path / "sluice.sqlite3"
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", str(database))
    settings.SLUICE_EMBEDDED = True
    tmp_path.chmod(0o755)
    for path in (database, tmp_path / "sluice.sqlite3-wal", tmp_path / "secret.key"):
        path.touch()
        path.chmod(0o644)
    return tmp_path


def test_a_new_home_and_its_database_are_the_owners_alone(tmp_path):
    environment = {**os.environ, "SLUICE_HOME": str(tmp_path / "new")}
    environment.pop("DATABASE_URL", None)
    command = "import django; django.setup(); from django.db import connection as c; c.ensure_connection(); c.close()"
    code = f"import os; os.umask(0o022); os.environ['DJANGO_SETTINGS_MODULE'] = 'gateway.settings'; {command}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert tmp_path / "new" / "sluice.sqlite3" in made
    assert [(path.name, oct(mode(path))) for path in made if mode(path) & 0o077] == []


def test_an_older_home_is_found_and_closed(older):
    assert {path.name for path in home.open_to_others()} == {
        older.name,
        "sluice.sqlite3",
        "sluice.sqlite3-wal",
        "secret.key",
    }
    home.close_to_others()
    assert home.open_to_others() == []
    assert mode(older) == 0o700
    assert mode(older / "sluice.sqlite3") == 0o600


def found(subject):
    return next(one.findings for one in examine("http://127.0.0.1:1") if one.check.name == subject)


@pytest.mark.django_db(transaction=True)
def test_doctor_says_how_to_close_it(settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    tmp_path.chmod(0o755)
    [_, exposed] = found("home")
    assert str(tmp_path) in exposed.text
    assert exposed.mend.startswith("`chmod go-rwx ")
    tmp_path.chmod(0o700)
    assert all(one.is_fine for one in found("home"))


def test_the_disk_of_the_ledger_counts_wherever_the_home_is(monkeypatch, settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    settings.SLUICE_EMBEDDED = True
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", "/ledger/db.sqlite3")
    free = {tmp_path: 2**40, Path("/ledger"): 2**40}
    monkeypatch.setattr(home.shutil, "disk_usage", lambda place: SimpleNamespace(free=free[place]))
    assert not home.is_disk_full()
    free[Path("/ledger")] = 0
    assert home.is_disk_full()


@pytest.mark.django_db(transaction=True)
def test_a_full_disk_is_said(monkeypatch):
    assert [one.is_fine for one in found("disk")] == [True]
    monkeypatch.setattr(home.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 2**20))
    assert home.is_disk_full()
    [disk] = found("disk")
    assert "5 MiB" in disk.text
    assert "make room" in disk.mend
