"""What was released stays as it was: its migrations, byte for byte, and its databases, which today's code takes over.

Each folder is a release: digests of its migrations, and databases that it made and used. To add one, see UPGRADING.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[2]
RELEASES = sorted(path.name for path in Path(__file__).parent.iterdir() if (path / "migrations.sha256").exists())

# Rows that each migration or start writes anew, and columns that a later release took away or rewrites on purpose.
REWRITTEN = {"django_migrations", "gateway_catalogueepoch", "gateway_tenantepoch", "sqlite_sequence"}
TAKEN_AWAY = {("routing_deployment", "node")}  # a replica's node, now: see the test below


def released(release, name):
    return (Path(__file__).parent / release / name).read_text()


@pytest.mark.parametrize("release", RELEASES)
def test_released_migrations_are_as_they_were(release):
    listed = [line.split() for line in released(release, "migrations.sha256").splitlines()]
    changed = [path for digest, path in listed if hashlib.sha256((ROOT / path).read_bytes()).hexdigest() != digest]
    assert len(listed) > 10
    assert changed == [], "databases out there have applied these: undo the change, and add a new migration"


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_was_slipped_between_released_migrations(release):
    """A migration with a released number, or that a released one comes after, would be skipped or never applied."""
    listed = {line.split()[1] for line in released(release, "migrations.sha256").splitlines()}
    last = {app: max(path for path in listed if path.startswith(app)) for app in ("billing", "gateway", "routing")}
    for app, path in last.items():
        there = {str(file.relative_to(ROOT)) for file in (ROOT / app / "migrations").glob("0*.py")}
        assert {file for file in there if file <= path} == {file for file in listed if file.startswith(app)}


@contextmanager
def database_of(release, home):
    """A database as that release left it: SQLite in `home`, or on the run's PostgreSQL server."""
    if not os.environ.get("DATABASE_URL"):
        with closing(sqlite3.connect(home / "sluice.sqlite3")) as connection:
            connection.executescript(released(release, "sqlite.sql"))
        yield {}
        return
    name = f"released_{uuid.uuid4().hex[:12]}"
    server = os.environ["DATABASE_URL"]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    url = server.rsplit("/", 1)[0] + f"/{name}"
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(released(release, "postgresql.sql"))
        yield {"DATABASE_URL": url}
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def rows_of(home, database):
    """Every row of every table, as {column: text}, by table."""
    if "DATABASE_URL" in database:
        connection = psycopg.connect(database["DATABASE_URL"])
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    else:
        connection = sqlite3.connect(home / "sluice.sqlite3")
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    with closing(connection):
        found = {}
        for (table,) in connection.execute(tables).fetchall():
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            found[table] = [dict(zip(names, map(str, row), strict=True)) for row in cursor.fetchall()]
        return found


def lost(before, after):
    """The rows of `before` that `after` lacks, or has with other values in the columns that both have."""
    found = []
    for table, rows in before.items():
        if table in REWRITTEN or not rows:
            continue
        assert table in after, f"{table} is gone"
        columns = [name for name in rows[0] if (table, name) not in TAKEN_AWAY]
        assert all(name in row for row in after[table] for name in columns), table
        there = {tuple(row[name] for name in columns) for row in after[table]}
        found += [(table, row) for row in rows if tuple(row[name] for name in columns) not in there]
    return found


def run(environment, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.money
@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_a_released_database_is_taken_over_with_all_that_it_holds(release):
    facts = json.loads(released(release, "facts.json"))
    with tempfile.TemporaryDirectory(prefix="sluice-released-") as folder:
        home = Path(folder)
        with database_of(release, home) as database:
            environment = {
                **os.environ,
                **database,
                "SLUICE_HOME": folder,
                "SLUICE_ENV": "test",
                "SLUICE_SECRET_KEY": facts["secret"],
            }
            before = rows_of(home, database)
            run(environment, "manage.py", "setup")
            after = rows_of(home, database)
            assert lost(before, after) == []
            assert run(environment, "manage.py", "reconcile").splitlines()[-1] == "the books are right"
            here = facts["postgresql" if database else "sqlite"]
            found = json.loads(run(environment, "-m", "tests.released.look", json.dumps(here)).splitlines()[-1])
            assert found == {"keys": ["kept", "revoked"], "is_revoked": [True], "is_signed_in": True}
            if "node" not in after["routing_deployment"][0]:
                nodes = {row["id"]: row["name"] for row in after["routing_node"]}
                replicas = {(row["deployment_id"], nodes[row["node_id"]]) for row in after["routing_replica"]}
                assert {(row["id"], row["node"]) for row in before["routing_deployment"]} == replicas
