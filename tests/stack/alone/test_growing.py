"""An installation on SQLite that goes to PostgreSQL, at another place: every row, number, secret and sum with it."""

from __future__ import annotations

import re
import subprocess
import uuid
from contextlib import contextmanager
from signal import SIGKILL

import psycopg
import pytest

from operation.backup.postgresql import _program
from tests.stack.stack import Stack, database_url, environment_of, migrated

pytestmark = [pytest.mark.stack, pytest.mark.slow]

USED = "tests.stack.used"
NAMES = ["acme", "globex", "initech"]
REQUESTS = 1_000
CHANGED = {"billing_hold", "billing_reconciliation", "gateway_catalogueepoch", "gateway_observation"}
"""Tables of which a restore changes rows: it ends leases, and what gateways remember, and checks the books."""


@contextmanager
def opened(home, **variables):
    """A home that nothing serves."""
    home.mkdir(exist_ok=True)
    stack = Stack(home, environment_of(home, **variables), 0, {})
    try:
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """The archive of an installation, its keys, and all that it holds."""
    home = tmp_path_factory.mktemp("former")
    with migrated(home), opened(home) as stack:
        keys = stack.script(f"{USED}:use", NAMES, REQUESTS)
        stack.manage("backup", str(home / "made.tar.gz"))
        yield home / "made.tar.gz", keys, stack.script(f"{USED}:contents"), stack.script(f"{USED}:sums")


@pytest.fixture
def server(postgres_server, tmp_path):
    """A new home whose database is empty, on PostgreSQL."""
    name = f"grown_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            with opened(tmp_path / "home", DATABASE_URL=database_url(postgres_server, name)) as stack:
                yield stack
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(params=["quick", pytest.param("real", marks=pytest.mark.sweep)])
def schema(request, postgres_server, tmp_path):
    """A script of what migrating makes on PostgreSQL; none where migrating itself is to do it, which takes longest."""
    if request.param == "real":
        return ""
    with migrated(tmp_path, postgres_server) as variables:
        dumped = ["pg_dump", "--schema-only", "--no-owner", f"--dbname={variables['DATABASE_URL']}"]
        script = subprocess.run([_program(dumped[0]), *dumped[1:]], check=True, capture_output=True, text=True).stdout
    lines = [line for line in script.splitlines() if not re.search(r"SCHEMA public|set_config|^\\", line)]
    (tmp_path / "schema.sql").write_text("\n".join(lines))
    return str(tmp_path / "schema.sql")


def tables(stack):
    with psycopg.connect(stack.environment["DATABASE_URL"]) as connection:
        rows = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        return rows.fetchall()


def test_everything_comes_along(moved, server, schema):
    archive, keys, contents, sums = moved
    restore = (schema, "restore", str(archive))
    killed = server.script(f"{USED}:run", "from_sqlite._Copy._hold_again", *restore)  # once all rows were there
    assert killed == [-SIGKILL, "", ""]
    assert tables(server) == []

    code, said, complaint = server.script(f"{USED}:run", "", *restore)
    assert code == 0, complaint
    assert said.splitlines()[-1] == "the books are right"
    assert "5 requests ran at that time" in said
    server.close()  # it has the secret of before
    assert server.script(f"{USED}:sums") == sums
    found = server.script(f"{USED}:contents")
    assert {name for name, rows in contents.items() if found[name] != rows} <= CHANGED
    assert found["billing_hold"][0] == contents["billing_hold"][0] == 5
    assert server.script(f"{USED}:opened", keys) == [NAMES, True, "sealed text"]
    new, last = server.script(f"{USED}:numbered")
    assert new == last + 2  # the last event of all had gone


def test_a_restore_that_is_killed_late_is_told_and_goes_on(moved, tmp_path):
    archive, *_ = moved
    with opened(tmp_path / "home") as stack:
        killed = stack.script(f"{USED}:run", "secrets.take_over", "", "restore", str(archive))
        assert killed[0] == -SIGKILL
        assert "a restore into it was stopped: run that `manage.py restore` again" in refused(stack, "jobs", "--once")
        assert stack.manage("restore", str(archive)).splitlines()[-1] == "the books are right"
        stack.manage("jobs", "--once")
        assert "--replace" in refused(stack, "restore", str(archive))


def refused(stack, *command):
    """What a command that must fail complains of."""
    code, _, complaint = stack.script("manage", *command)
    assert code == 1
    return complaint
