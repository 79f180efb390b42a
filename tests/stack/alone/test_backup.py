"""The drill on both databases: a backup while requests run, all destroyed, restored, reconciled, and served again."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from openai import OpenAI

from base.http import open_directly
from tests.stack.stack import PATIENCE, assert_books_are_right, running_stack
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

CONTENT = b'{"custom_id": "a"}\n' * 50_000


def request_of(stack, tenant, **more):
    return {"model": "fake-chat", "messages": [{"role": "user", "content": f"of {tenant}"}], **more}


class Load:
    """Clients of all tenants until told to stop: each has one that asks and asks, and one that reads a long stream.

    Once entered, all of them have had an answer, or its beginning.
    """

    def __init__(self, stack):
        self._stack = stack
        self._stop = threading.Event()
        self._begun = threading.Barrier(2 * len(stack.tenants) + 1)

    def __enter__(self):
        self._pool = ThreadPoolExecutor()
        self._clients = [self._pool.submit(self._ask, tenant) for tenant in self._stack.tenants]
        self._clients += [self._pool.submit(self._stream, tenant) for tenant in self._stack.tenants]
        self._begun.wait()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self.statuses = {status for client in self._clients for status in client.result()}
        self._pool.shutdown()

    def _ask(self, tenant):
        statuses = []
        while not self._stop.is_set():
            body = request_of(self._stack, tenant, max_tokens=3)
            url = f"{self._stack.base_url}/v1/chat/completions"
            statuses.append(ask(url, body, key=self._stack.tenants[tenant]["key"]).status)
            if len(statuses) == 1:
                self._begun.wait()
        return statuses

    def _stream(self, tenant):
        """Read a stream's first tokens, then its rest once the backup is made."""
        body = json.dumps(request_of(self._stack, tenant, stream=True, max_tokens=2000)).encode()
        headers = {"authorization": f"Bearer {self._stack.tenants[tenant]['key']}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self._stack.base_url}/v1/chat/completions", body, headers)
        with open_directly(request, timeout=PATIENCE) as answer:
            for _ in range(5):
                answer.readline()
            self._begun.wait()
            self._stop.wait()
        return [answer.status]


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request):
    """The address of the PostgreSQL server on which the stack has its database; none for SQLite."""
    return request.getfixturevalue("postgres_server") if request.param == "postgresql" else ""


def destroy(stack, server):
    """Lose the home and the database."""
    shutil.rmtree(stack.home)
    stack.home.mkdir()
    if server:
        name = stack.environment["DATABASE_URL"].rpartition("/")[2]
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}"')


def test_a_backup_made_under_load_brings_everything_back(server, tmp_path):
    # A stream takes 100 s, so that it runs when the backup is made, however long the command takes to begin.
    with running_stack(server=server, chat={"step_seconds": 0.05, "text": "word " * 3000}) as stack:
        key = stack.tenants["max"]["key"]
        with OpenAI(api_key=key, base_url=f"{stack.base_url}/v1") as client:
            file = client.files.create(file=("in.jsonl", CONTENT), purpose="batch")
        adapter = stack.script("adapter", "stack-max")
        with Load(stack) as load:
            said = stack.manage("backup", str(tmp_path))
        assert load.statuses == {200}
        [archive] = tmp_path.iterdir()
        assert archive.stat().st_mode & 0o777 == 0o600
        assert str(archive) in said
        assert "tenants' files and adapters: 2" in said

        within = tmp_path / "drill"
        within.mkdir()
        drilled = stack.manage("drill", str(tmp_path), "--within", str(within)).splitlines()  # beside what runs
        assert drilled[-2] == "the books are right"
        assert drilled[-1].startswith(f"{archive} (")
        assert list(within.iterdir()) == []
        assert databases_of_drills(server) == []

        assert "stop" in refusal(stack, "restore", str(archive), "--replace")  # it runs
        stack.stop()
        at_the_end = stack.audit()
        assert "--replace" in refusal(stack, "restore", str(archive))  # it is full

        destroy(stack, server)
        restored = stack.command("restore", str(archive))
        assert restored.returncode == 0, restored.stdout + restored.stderr
        assert "requests ran at that time" in restored.stdout
        assert restored.stdout.splitlines()[-1] == "the books are right"
        assert "TO DO" not in restored.stdout

        stack.start()
        with OpenAI(api_key=key, base_url=f"{stack.base_url}/v1") as client:
            assert client.files.content(file.id).content == CONTENT
        assert stack.script("adapter", "stack-max") == adapter
        answer = ask(f"{stack.base_url}/v1/chat/completions", request_of(stack, "max", max_tokens=3), key=key)
        assert answer.status == 200, answer.text
        found = stack.audit()  # once the sweep has closed what ran when the backup was made
        assert_books_are_right(found)
        kept = {request: record for request, record in found["usage"].items() if request in at_the_end["usage"]}
        assert len(kept) > 3
        # What ran when the backup was made is settled by what its record had by then: estimated, or waived, or with
        # nothing where it had its hold, and the worker hadn't begun it when its record was copied.
        exact = {
            request: record
            for request, record in kept.items()
            if record["exact"] and not record["waived"] and record["classes"]
        }
        assert exact
        assert exact == {request: at_the_end["usage"][request] for request in exact}
        assert stack.manage("reconcile").splitlines()[-1] == "the books are right"
        assert stack.stop() == 0
        assert "stays as it was" in stack.manage("restore", str(archive), "--replace")


def databases_of_drills(server):
    if not server:
        return []
    with psycopg.connect(server) as connection:
        found = connection.execute("SELECT datname FROM pg_database WHERE starts_with(datname, 'sluice_drill_')")
        return found.fetchall()


def refusal(stack, *command):
    """What a command that must fail complains of."""
    code, _, complaint = stack.script("manage", *command)
    assert code == 1
    return complaint
