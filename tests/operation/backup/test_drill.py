"""What a drill refuses before it begins, and what it says of a backup that can't be restored."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from operation.backup import drill


@pytest.fixture
def folder(tmp_path):
    """A folder with two archives, the newer of which is damaged; there is no installation beside it."""
    for day in (1, 2):
        (tmp_path / f"sluice-2026010{day}T032000Z.tar.gz").write_bytes(os.urandom(1000))
    (tmp_path / "within").mkdir()
    return tmp_path


def refusal(*arguments):
    with pytest.raises(CommandError) as refused:
        call_command("drill", *map(str, arguments))
    return str(refused.value)


def test_the_newest_backup_of_a_folder_is_taken_and_one_that_is_damaged_fails(folder, capsys, monkeypatch):
    monkeypatch.setattr(drill, "connection", SimpleNamespace(vendor="sqlite"))
    complaint = refusal(folder, "--within", folder / "within")
    assert complaint.startswith(f"the drill with {folder}/sluice-20260102T032000Z.tar.gz failed after ")
    assert "is no backup, or damaged" in capsys.readouterr().out
    assert list((folder / "within").iterdir()) == []


def test_where_nothing_is_it_says_what_to_do(tmp_path):
    assert refusal(tmp_path) == f"there is no backup in {tmp_path}: `manage.py backup {tmp_path}` makes one"
    assert refusal(tmp_path / "a.tar.gz").startswith(f"{tmp_path}/a.tar.gz: No such file or directory: name an archive")


def test_a_folder_without_room_is_named_before_anything_is_made(folder, monkeypatch):
    monkeypatch.setattr(drill.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    archive = folder / "sluice-20260101T032000Z.tar.gz"
    with archive.open("wb") as file:
        file.truncate(1 << 20)
    complaint = refusal(archive, "--within", folder / "within")
    assert complaint.startswith(f"the drill may need 6 MiB in {folder}/within, where 5 MiB are free: make room there")


@pytest.fixture
def server(monkeypatch):
    """Have a pooler that nobody can reach, and PostgreSQL's own address, which is returned without the database."""
    given = connection.settings_dict
    address = f"postgresql://{given['USER']}@{given['HOST']}:{given['PORT']}/"
    monkeypatch.setenv("DATABASE_URL", "postgresql://sluice@pooler.invalid:6432/alias")
    monkeypatch.setenv("SLUICE_DIRECT_DATABASE_URL", f"{address}{given['NAME']}")
    return address


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_dropped", [True, False])
def test_the_copy_is_made_past_a_pooler_and_what_stays_is_named(folder, server, monkeypatch, capsys, is_dropped):
    restored, limits = [], []

    def restore(command, *, env, **options):
        restored.append(env["DATABASE_URL"])
        psycopg.connect(env["DATABASE_URL"]).close()
        return SimpleNamespace(returncode=0, stdout="the books are right")

    def watch(execute, sql, *rest):
        if " DATABASE " in sql:
            limits.append(connection.connection.execute("SHOW statement_timeout").fetchone()[0])
        if sql.startswith("DROP") and not is_dropped:
            raise OperationalError("canceling statement")
        return execute(sql, *rest)

    monkeypatch.setattr(drill.subprocess, "run", restore)
    words = ("drill", str(folder), "--within", str(folder / "within"))
    with connection.execute_wrapper(watch):
        said = call_command(*words) if is_dropped else refusal(*words[1:])
    [name] = (address.removeprefix(server) for address in restored)
    assert limits == ["0", "0"]
    assert re.search(r"the database has \d+ [kM]B now", capsys.readouterr().out)
    with psycopg.connect(server + "postgres", autocommit=True) as session:
        left = session.execute("SELECT datname FROM pg_database WHERE datname = %s", [name]).fetchall()
        session.execute(f"DROP DATABASE IF EXISTS {name}")
    assert left == ([] if is_dropped else [(name,)])
    if not is_dropped:
        assert f"as the database {name}: canceling statement: `DROP DATABASE {name} WITH (FORCE)`" in said
