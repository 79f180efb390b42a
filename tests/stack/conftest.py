"""A whole Sluice as processes: `manage.py serve` on a home of its own, with the database of this run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.services.postgres import free_port

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Stack:
    """A running `serve`; `say` holds its output so far."""

    home: Path
    environment: dict[str, str]
    port: int
    tenants: dict[str, dict[str, str]]
    process: subprocess.Popen[str] | None = None
    said: list[str] = field(default_factory=list)
    _ready: threading.Event = field(default_factory=threading.Event)
    _heard: threading.Condition = field(default_factory=threading.Condition)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start `serve` and wait until it says ready."""
        self._ready.clear()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", str(self.port)],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        if not self._ready.wait(90):
            self.stop()
            pytest.fail("serve never said ready:\n" + "".join(self.said[-80:]))

    def stop(self) -> int:
        """Ctrl-C; return the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(40)
        self.process = None
        return code

    def pid_of(self, child: str) -> int:
        """Return the process id of ``gateway``, ``worker`` or ``jobs``."""
        assert self.process is not None
        needle = {"gateway": "manage.py gateway", "jobs": "manage.py jobs", "worker": "inference.worker"}[child]
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                command = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.process.pid and needle in command:
                return int(status.parent.name)
        raise LookupError(f"no {child} below {self.process.pid}")

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
            assert self._heard.wait_for(lambda: is_so(self.said), 20), "".join(self.said[-40:])

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


@contextmanager
def database_of_this_run(home: Path) -> Iterator[dict[str, str]]:
    """SQLite in `home`, or a fresh database on the run's PostgreSQL server."""
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        yield {}
        return
    name = f"stack_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield {"DATABASE_URL": url.rsplit("/", 1)[0] + f"/{name}"}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def running_stack(variables: dict[str, str] | None = None, **fake_options: Any) -> Iterator[Stack]:
    """Seed a home and serve it, with more environment `variables`; whatever happens, nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="sluice-stack-") as folder, database_of_this_run(Path(folder)) as database:
        home = Path(folder)
        environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_ENV": "test", **database, **(variables or {})}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        port = free_port()
        environment["SLUICE_BASE_URL"] = f"http://127.0.0.1:{port}"
        stack = Stack(home, environment, port, {})
        stack.manage("migrate", "-v0")
        stack.tenants = stack.script("seed", json.dumps(fake_options))
        stack.start()
        try:
            yield stack
        finally:
            if stack.process is not None:
                stack.process.kill()
                stack.process.wait()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(chat={"step_seconds": 0.003}) as running:
        yield running
        code = running.stop()
        assert code == 0, "".join(running.said[-40:])
