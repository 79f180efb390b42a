"""A whole Sluice as processes: `manage.py serve` on a home of its own, with SQLite or a database of a given server."""

from __future__ import annotations

import functools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.databases import copy_on_postgres, sqlite_template
from tests.services.ports import lease_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 200.0  # seconds for what comes: machines are slow at times, and each test has a limit of its own
INSIDE = "tests.stack.inside"
DEAD_PROXY = {
    **dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:1"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
}
"""Variables of a proxy that doesn't answer, for every address."""
INSTALLATION = ("DATABASE_URL", "SLUICE_DIRECT_DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
"""Variables of the run of tests, never of a stack."""


class Inside:
    """`tests.stack.inside` in a stack's home: it has Django once for all that tests do and look up there."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", INSIDE]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)
        self._turn = threading.Lock()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call one of its functions; AssertionError with the traceback of what went wrong there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps([name, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, f"the helper ended with {self._process.wait()}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def close(self) -> None:
        with self._process:  # ends its input, at which it ends
            pass


@dataclass
class Stack:
    """A running `serve`; `say` holds its output so far. `records` are those of the workers that it has."""

    home: Path
    environment: dict[str, str]
    port: int
    tenants: dict[str, dict[str, Any]]
    process: subprocess.Popen[str] | None = None
    said: list[str] = field(default_factory=list)
    options: tuple[str, ...] = ()
    records: list[Path] = field(default_factory=list)
    _inside: Inside | None = None
    _ready: threading.Event = field(default_factory=threading.Event)
    _heard: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.records = self.records or [self.home / "worker-local.record"]

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
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            code = self.stop(signal.SIGABRT)  # at which Python says where it is
            pytest.fail(f"serve never said ready ({code}):\n{status}\n" + "".join(self.said[-80:]))

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send it a signal, Ctrl-C's unless told; return the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def close(self) -> None:
        """Leave nothing running, however far it came."""
        if self._inside is not None:
            self._inside.close()
            self._inside = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pid_of(self, child: str) -> int:
        """Return the process id of ``gateway``, ``worker`` or ``jobs``."""
        if pids := self.pids_of(child):
            return pids[0]
        raise LookupError(f"no {child} runs")

    def pids_of(self, child: str) -> list[int]:
        """Return the process ids of all children of that kind."""
        assert self.process is not None
        needle = {"gateway": "manage.py gateway", "jobs": "manage.py jobs", "worker": "inference.worker"}[child]
        return children_of(self.process.pid, needle)

    def kill(self, child: str) -> int:
        pid = self.pid_of(child)
        os.kill(pid, signal.SIGKILL)
        return pid

    def script(self, name: str, *arguments: Any) -> Any:
        """Call a function of `tests.stack.inside` in the stack's home."""
        if self._inside is None:
            self._inside = Inside(self.environment)
        return self._inside.ask(name, *arguments)

    def manage(self, *arguments: str) -> str:
        """Run a management command, which must succeed; return what it printed."""
        code, printed, complained = self.script("manage", *arguments)
        assert code == 0, printed + complained
        return str(printed)

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a management command as a process of its own and return it done, whatever its exit status."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def tenant(self, slug: str, credit: int = 10**9, **terms: Any) -> dict[str, Any]:
        """Make a tenant with so many µcr; with terms of its plan it has a plan of its own."""
        return dict(self.script("tenants", {slug: credit}, terms)[slug])

    def wait_until_said(self, is_so: Callable[[list[str]], bool]) -> None:
        """Return once what was said so far `is_so`; lines come through a pipe, after what they tell of."""
        with self._heard:
            assert self._heard.wait_for(lambda: is_so(self.said), PATIENCE), "".join(self.said[-40:])

    def audit(self) -> dict[str, Any]:
        """What database and workers' records say, once no hold is open (bounded by the test's timeout)."""
        while True:
            while self.script("holds"):
                time.sleep(0.1)
            found = self.script("audit", [str(path) for path in self.records])
            if not found["holds"]:
                return dict(found)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._heard:
                    self.said.append(line)
                    self._heard.notify_all()
                if '"event":"ready in ' in line:
                    self._ready.set()


def children_of(pid: int, needle: str = "") -> list[int]:
    """Return the process ids of the children of a process whose command has `needle` in it."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) != pid:
                continue
            command = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if needle in command:
            found.append(int(status.parent.name))
    return sorted(found)


def assert_books_are_right(found: dict[str, Any]) -> None:
    """Of what `Stack.audit` found: Σ usage = Σ ledger = Σ recomputed, nothing is held and nobody below zero."""
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
    assert found["holds"] == 0
    assert all(wallet["held"] == 0 <= wallet["posted"] for wallet in found["wallets"].values())


def processes_of(home: Path) -> list[str]:
    """Return the commands of the processes that work on `home`, by what their environment says."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"SLUICE_HOME={home}".encode() in environment and INSIDE not in command:
            found.append(command)
    return found


def socket_file(home: Path) -> Path:
    """Return the socket of the home's worker."""
    spec = json.loads((home / "worker-local.json").read_text())
    return Path(spec["endpoint"].removeprefix("ipc://"))


def assert_nothing_is_left(stack: Stack) -> None:
    """Of a stack that has ended there is no process, no socket and no hold, and its books are right."""
    assert processes_of(stack.home) == []
    assert not socket_file(stack.home).exists()
    assert not socket_file(stack.home).parent.exists()
    assert_books_are_right(stack.script("audit", [str(path) for path in stack.records]))


# -- homes and databases ------------------------------------------------------------------------------------------


def environment_of(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a home's processes, which has nothing of the installation that runs the tests."""
    kept = {name: value for name, value in os.environ.items() if name not in INSTALLATION}
    return {**kept, "SLUICE_HOME": str(home), "SLUICE_ENV": "test", "PYTHONFAULTHANDLER": "1", **variables}


def share_kernels(home: Path) -> None:
    """Have the home use the run's kernels in C, which take long to build."""
    if (kernels := Path(os.environ.get("SLUICE_HOME", "var")) / "cache" / "kernels").exists():
        (home / "cache").mkdir(exist_ok=True)
        (home / "cache" / "kernels").symlink_to(kernels.resolve())


def migrate(database: str) -> None:
    """Make the tables in the database at that address, by the command that an operator uses."""
    command = [sys.executable, "manage.py", "migrate", "-v0"]
    with tempfile.TemporaryDirectory(prefix="sluice-migrated-") as home:
        subprocess.run(command, cwd=ROOT, env=environment_of(Path(home), DATABASE_URL=database), check=True)


@functools.cache
def shared_home() -> tempfile.TemporaryDirectory[str] | None:
    """A home for what the stacks of this process share where no run of tests has one."""
    return None if os.environ.get("SLUICE_ENV") == "test" else tempfile.TemporaryDirectory(prefix="sluice-shared-")


def database_url(server: str, name: str) -> str:
    return f"{server.rsplit('/', 1)[0]}/{name}"


@contextmanager
def migrated(home: Path, server: str = "") -> Iterator[dict[str, str]]:
    """Give a home a database with tables: SQLite in it, or on the PostgreSQL server; yields its variables."""
    shared = Path(kept.name if (kept := shared_home()) else os.environ["SLUICE_HOME"])
    if not server:
        source = sqlite_template(shared, lambda path: migrate(f"sqlite:///{path}"))
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as template,
            closing(sqlite3.connect(home / "sluice.sqlite3")) as own,
        ):
            template.backup(own)
        yield {}
        return
    name = f"stack_{uuid.uuid4().hex[:12]}"
    copy_on_postgres(shared, server, name, lambda making: migrate(database_url(server, making)))
    yield {"DATABASE_URL": database_url(server, name)}
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def running_stack(
    variables: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    *,
    server: str = "",
    pooler: int = 0,
    **fake_options: Any,
) -> Iterator[Stack]:
    """Seed a home and serve it, with more environment `variables` and `options` of the command, on SQLite or on a
    database of the PostgreSQL `server`, behind the `pooler` at that port; whatever happens, nothing of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-stack-") as folder, migrated(Path(folder), server) as database:
        home, port = Path(folder), lease_port()
        share_kernels(home)
        own = {"SLUICE_BASE_URL": f"http://127.0.0.1:{port}", **database, **(variables or {})}
        if pooler:
            own["SLUICE_DIRECT_DATABASE_URL"] = direct = database["DATABASE_URL"]
            own["DATABASE_URL"] = urlsplit(direct)._replace(netloc=f"sluice@127.0.0.1:{pooler}").geturl()
        stack = Stack(home, environment_of(home, **own), port, {}, options=options)
        try:
            stack.tenants = stack.script("seed", fake_options)
            stack.start()
            yield stack
        finally:
            stack.close()
