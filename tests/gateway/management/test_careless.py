"""Commands run in the wrong order, or on what is no database or folder: one line that says what to do, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ("gateway --port 1", "jobs", "jobs --once", "worker", "sweep", "models list")


def said(command, code=1, **variables):
    """What a command that fails prints; it ends with `code` before it serves anything."""
    given = {**os.environ, "SLUICE_ENV": "test", **variables}
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE"):
        if name not in variables:
            given.pop(name, None)
    run = [sys.executable, "manage.py", *command.split()]
    done = subprocess.run(run, cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert not done.stdout
    return done.stderr


def test_before_setup(tmp_path):
    with ThreadPoolExecutor(2) as threads:
        lines = list(threads.map(lambda command: said(command, SLUICE_HOME=str(tmp_path)), COMMANDS))
    for command, line in zip(COMMANDS, lines, strict=True):
        assert line.endswith("migrations not applied: run `manage.py setup`\n"), command
        assert line.count("\n") == 1, line


@pytest.mark.parametrize("command", ["gateway --port 1", "migrate"])
def test_on_a_file_that_is_no_database(tmp_path, command):
    (tmp_path / "sluice.sqlite3").write_text("a letter")
    line = said(command, SLUICE_HOME=str(tmp_path))
    assert "file is not a database: start it, or correct DATABASE_URL" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("command", ["gateway --port 1", "serve --port 1"])
def test_on_a_database_in_a_folder_that_is_not_there(tmp_path, command):
    line = said(command, SLUICE_HOME=str(tmp_path), DATABASE_URL=f"sqlite:///{tmp_path}/none/sluice.sqlite3")
    assert "unable to open database file: start it, or correct DATABASE_URL" in line
    assert line.count("\n") == 1


def test_without_a_home(tmp_path):
    (tmp_path / "file").touch()
    line = said("check", 78, SLUICE_HOME=str(tmp_path / "file"))
    assert line == f"settings: SLUICE_HOME can't be a folder at {tmp_path / 'file'}: File exists\n"


def test_with_a_secret_that_is_not_there(tmp_path):
    line = said("check", 78, SLUICE_HOME=str(tmp_path), SLUICE_SECRET_KEY_FILE=str(tmp_path / "none"))
    assert line.startswith("settings: SLUICE_SECRET_KEY_FILE can't be read: ")
    assert line.count("\n") == 1


LASTING = ("serve --port 1", "gateway --port 1", "jobs", "worker --node far")


def test_wrong_settings_are_told_apart_from_what_may_pass(tmp_path):
    """A unit isn't started again after 78; a database that is away or not set up ends with another code."""
    for unit in (ROOT / "deploy/systemd").glob("*.service"):
        if "Restart=always" in (text := unit.read_text()):
            assert "\nRestartPreventExitStatus=78\n" in text, unit.name
    home = {"SLUICE_HOME": str(tmp_path)}

    def wrong(command):
        unread = said(command, 78, SLUICE_MAX_CONNECTIONS="many", **home)
        unsafe = said(command, 78, SLUICE_ENV="production", SLUICE_DEBUG="true", **home)
        away = said(command, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none", **home)
        return unread, unsafe, away

    with ThreadPoolExecutor(2) as threads:
        for unread, unsafe, away in threads.map(wrong, LASTING):
            assert unread.startswith("settings: SLUICE_MAX_CONNECTIONS is 'many'")
            assert "DEBUG is on in production" in unsafe
            assert "start it, or correct DATABASE_URL" in away
