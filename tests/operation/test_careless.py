"""Commands run in the wrong order, or on what is no database or folder: one line that says what to do, no traceback.

A process is started for each way to fail; each command's own part in it is looked at in this process.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from django.conf import settings as configured
from django.db import connection

import manage
from base import checks
from billing.jobs import Job
from operation.jobs import tasks
from operation.management.commands import serve

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("gateway --port 1", "serve --port 1", "jobs", "jobs --once", "worker --node far", "sweep", "models list")
LASTING = ("serve --port 1", "gateway --port 1", "jobs", "worker --node far")
NO_FILE = "unable to open database file: start it, or correct DATABASE_URL\n"
NO_DATABASE = "file is not a database: start it, or correct DATABASE_URL\n"


def said(command, code=1, **variables):
    """What the process of a command that fails prints; it ends with `code` before it serves anything."""
    given = {**os.environ, "SLUICE_ENV": "test", **variables}
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE"):
        if name not in variables:
            given.pop(name, None)
    run = [sys.executable, "manage.py", *command.split()]
    done = subprocess.run(run, cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == code, done.stdout + done.stderr
    assert not done.stdout
    return done.stderr


@pytest.fixture
def main(monkeypatch, capsys, django_db_blocker):
    """Return a function that runs a command here, as `manage.py` does, on the database at a path; it returns the code
    of its end and what it prints.
    """
    monkeypatch.setattr(serve, "configure_logs", lambda: None)

    def run(command, database):
        monkeypatch.setitem(configured.DATABASES["default"], "NAME", str(database))
        monkeypatch.setattr(sys, "argv", ["manage.py", *command.split()])
        with django_db_blocker.unblock(), pytest.raises(SystemExit) as ended:
            connection.close()
            manage.main()
        out, error = capsys.readouterr()
        assert not out
        return ended.value.code, error

    return run


def test_before_setup(tmp_path):
    line = said("models list", SLUICE_HOME=str(tmp_path))
    assert line.endswith(f"migrations not applied: run {checks.command('setup')}\n")
    assert line.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_database_that_is_not_set_up(main, tmp_path, command):
    code, line = ended(main(command, tmp_path / "sluice.sqlite3"))
    assert code == 1
    assert line.endswith(f"migrations not applied: run {checks.command('setup')}\n")


def test_setup_that_fails_says_why(main, tmp_path):
    database = tmp_path / "sluice.sqlite3"
    with closing(sqlite3.connect(database)) as foreign:
        foreign.execute("CREATE TABLE django_content_type (id integer)")
    code, line = ended(main("setup --verbosity 0", database))
    assert code == 1
    assert "this run of setup failed: " in line
    assert "django_content_type" in line


def test_cron_does_nothing_on_a_database_that_is_not_migrated(main, tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(tasks, "JOBS", [Job("only", lambda: done.append(1), every_s=1)])
    code, line = ended(main("jobs --once", tmp_path / "sluice.sqlite3"))
    assert code == 1
    assert line.endswith(f"migrations not applied: run {checks.command('setup')}\n")
    assert not done


# Django opens no connection whose first statement fails, and doesn't close what it made of it; Python 3.13 says so.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize("command", [*COMMANDS, "migrate"])
def test_a_command_on_what_is_no_database(main, tmp_path, command):
    (tmp_path / "sluice.sqlite3").write_text("a letter")
    code, line = ended(main(command, tmp_path / "sluice.sqlite3"))
    assert code == 1
    assert line.endswith(NO_DATABASE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_database_in_a_folder_that_is_not_there(main, tmp_path, command):
    code, line = ended(main(command, tmp_path / "none" / "sluice.sqlite3"))
    assert code == 1
    assert line.endswith(NO_FILE)


def ended(end):
    """The code and the one line with which a command ended: the code may be the line, as `sys.exit` takes it."""
    code, line = end
    if isinstance(code, str):
        code, line = 1, f"{line}{code}\n"
    assert line.count("\n") == 1, line
    return code, line


@pytest.mark.parametrize("command", LASTING)
def test_a_command_with_settings_that_are_unsafe(main, settings, tmp_path, command):
    settings.SLUICE_ENV, settings.DEBUG = "production", True
    code, lines = main(command, tmp_path / "sluice.sqlite3")
    assert code == os.EX_CONFIG
    assert "DEBUG is on in production" in lines


def test_without_a_home(tmp_path):
    (tmp_path / "file").touch()
    line = said("check", 78, SLUICE_HOME=str(tmp_path / "file"))
    assert line == f"settings: SLUICE_HOME can't be a folder at {tmp_path / 'file'}: File exists\n"


def test_with_a_secret_that_is_not_there(tmp_path):
    line = said("check", 78, SLUICE_HOME=str(tmp_path), SLUICE_SECRET_KEY_FILE=str(tmp_path / "none"))
    assert line.startswith("settings: SLUICE_SECRET_KEY_FILE can't be read: ")
    assert line.count("\n") == 1


def test_wrong_settings_are_told_apart_from_what_may_pass(tmp_path):
    """A unit isn't started again after 78; a database that is away or not set up ends with another code."""
    for unit in (ROOT / "deploy/systemd").glob("*.service"):
        if "Restart=always" in (text := unit.read_text()):
            assert "\nRestartPreventExitStatus=78\n" in text, unit.name
    home = {"SLUICE_HOME": str(tmp_path)}
    unread = said("serve --port 1", 78, SLUICE_MAX_CONNECTIONS="many", **home)
    assert unread == "settings: SLUICE_MAX_CONNECTIONS is 'many': it has to be a whole number from 1 on\n"
    assert "DEBUG is on in production" in said(
        "gateway --port 1", 78, SLUICE_ENV="production", SLUICE_DEBUG="true", **home
    )
    away = said("jobs", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none", **home)
    assert "start it, or correct DATABASE_URL" in away
