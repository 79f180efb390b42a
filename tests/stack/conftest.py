"""A whole Sluice as processes: `manage.py serve` on a home of its own, with the database of this run."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.services.ports import lease_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 200.0  # seconds for what comes: machines are slow at times, and each test has a limit of its own


@dataclass
class Stack:
    """A running `serve`; `say` holds its output so far."""

    home: Path
    environment: dict[str, str]
    port: int
    tenants: dict[str, dict[str, str]]
    process: subprocess.Popen[str] | None = None
    said: list[str] = field(default_factory=list)
    options: tuple[str, ...] = ()
    _ready: threading.Event = field(default_factory=threading.Event)
    _heard: threading.Condition = field(default_factory=threading.Condition)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start `serve` and wait until it says ready."""
        self._ready.clear()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", str(self.port), *self.options],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        if not self._ready.wait(PATIENCE):
            self.stop()
            pytest.fail("serve never said ready:\n" + "".join(self.said[-80:]))

    def stop(self) -> int:
        """Ctrl-C; return the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def pid_of(self, child: str) -> int:
        """Return the process id of ``gateway``, ``worker`` or ``jobs``."""
        if pids := self.pids_of(child):
            return pids[0]
        raise LookupError(f"no {child} runs")

    def pids_of(self, child: str) -> list[int]:
        """Return the process ids of all children of that kind."""
        assert self.process is not None
        found = []
        needle = {"gateway": "manage.py gateway", "jobs": "manage.py jobs", "worker": "inference.worker"}[child]
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                command = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.process.pid and needle in command:
                found.append(int(status.parent.name))
        return sorted(found)

    def kill(self, child: str) -> int:
        pid = self.pid_of(child)
        os.kill(pid, signal.SIGKILL)
        return pid

    def script(self, name: str, *arguments: str) -> Any:
        """Run one of this folder's scripts in the stack's home and return the JSON it prints."""
        done = subprocess.run(
            [sys.executable, "-m", f"tests.stack.{name}", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait_until_said(self, is_so: Callable[[list[str]], bool]) -> None:
        """Return once what was said so far `is_so`; lines come through a pipe, after what they tell of."""
        with self._heard:
            assert self._heard.wait_for(lambda: is_so(self.said), PATIENCE), "".join(self.said[-40:])

    def audit(self) -> dict[str, Any]:
        """What database and worker's record say, once no hold is open (bounded by the test's timeout)."""
        while True:
            found = self.script("audit")
            if not found["holds"]:
                return dict(found)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._heard:
                    self.said.append(line)
                    self._heard.notify_all()
                if line.startswith("ready"):
                    self._ready.set()


def url_of(database: str) -> str:
    """The address of a `database` on the run's PostgreSQL server."""
    return os.environ["DATABASE_URL"].rsplit("/", 1)[0] + f"/{database}"


def migrate(home: Path, **database: str) -> None:
    """Make the tables, by the command that an operator uses."""
    environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_ENV": "test", **database}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)


@functools.cache
def migrated_home() -> tempfile.TemporaryDirectory[str]:
    """A home whose SQLite database has its tables and nothing else; made once and kept as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="sluice-migrated-")
    migrate(Path(folder.name))
    return folder


@functools.cache
def migrated_database() -> str:
    """The same on the run's PostgreSQL server, which ends with the run."""
    name = f"migrated_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    with tempfile.TemporaryDirectory(prefix="sluice-migrated-") as home:
        migrate(Path(home), DATABASE_URL=url_of(name))
    return name


@contextmanager
def database_of_this_run(home: Path) -> Iterator[dict[str, str]]:
    """A database with tables of its own: SQLite in `home`, or on the run's PostgreSQL server."""
    if not os.environ.get("DATABASE_URL"):
        source = f"file:{Path(migrated_home().name) / 'sluice.sqlite3'}?mode=ro"
        with (
            closing(sqlite3.connect(source, uri=True)) as migrated,
            closing(sqlite3.connect(home / "sluice.sqlite3")) as own,
        ):
            migrated.backup(own)
        yield {}
        return
    name = f"stack_{uuid.uuid4().hex[:12]}"
    template = migrated_database()
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    yield {"DATABASE_URL": url_of(name)}
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def running_stack(
    variables: dict[str, str] | None = None, options: tuple[str, ...] = (), **fake_options: Any
) -> Iterator[Stack]:
    """Seed a home and serve it, with more environment `variables` and `options` of the command; whatever happens,
    nothing of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-stack-") as folder, database_of_this_run(Path(folder)) as database:
        home = Path(folder)
        environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_ENV": "test", **database, **(variables or {})}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        port = lease_port()
        environment["SLUICE_BASE_URL"] = f"http://127.0.0.1:{port}"
        stack = Stack(home, environment, port, {}, options=options)
        stack.tenants = stack.script("seed", json.dumps(fake_options))
        stack.start()
        try:
            yield stack
        finally:
            if stack.process is not None:
                stack.process.kill()
                stack.process.wait()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """Whatever a test leaves open and unreachable is found at its own end, not at a later test's."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One stack for the tests that leave its processes alone. It answers at length; its books are looked at last."""
    with running_stack({"SLUICE_HEAD_SECONDS": "2"}, chat={"step_seconds": 0.003, "text": "word " * 2000}) as running:
        yield running
        found = running.audit()
        assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
        assert all(wallet["held"] == 0 <= wallet["posted"] for wallet in found["wallets"].values())
        assert running.stop() == 0, "".join(running.said[-40:])
        assert [line for line in running.said if "Traceback" in line] == []
