"""Sluice past one machine, as processes on loopback.

PostgreSQL, Redis, `serve` with two gateways (and a worker and the jobs' loop), a second worker as a node over
tcp with keys, a Celery worker and a beat beside them, and a scripted foreign server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from base.http import open_directly
from tests.services.ports import lease_port
from tests.services.redis import RedisServer
from tests.stack.stack import PATIENCE, ROOT, Stack, children_of, running_stack
from tests.stack.web import ask

NODE = "far"
READY_SECONDS = PATIENCE


@dataclass
class Process:
    """One process beside `serve` that may be killed and started again."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(self.command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        assert self.running is not None
        return self.running.pid

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: int = signal.SIGTERM, patience: float = 20.0) -> None:
        """Send `number` and return once it is gone."""
        if self.running is None:
            return
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            self.running.wait(patience)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
        self.running = None


@dataclass
class Topology:
    """All of it while it runs; `beside` are the processes that `serve` doesn't start, and `engines` is how many each
    gateway has ready when all is well.
    """

    stack: Stack
    redis: RedisServer
    far_home: Path
    metrics_port: int
    upstream_port: int
    control_port: int
    engines: int
    gateways: int
    beside: dict[str, Process] = field(default_factory=dict)

    def far_worker(self) -> int:
        """Return the process id of the far node's worker process; LookupError while there is none."""
        for child in children_of(self.beside[NODE].pid, "inference.worker"):
            return child
        raise LookupError("no worker runs on the far node")

    def places(self) -> dict[str, set[str]]:
        """Return for each gateway the engines that it has ready, as ``deployment@node``."""
        return {
            f"gateway-{number}": {"@".join(labels.split('"')[1:4:2]) for labels, value in samples if value == 1}
            for number, samples in enumerate(self._samples("sluice_deployment_ready{"), 1)
        }

    def counted(self, name: str) -> list[float]:
        """Return what each gateway says of a metric, over all labels that don't begin otherwise than `name`."""
        return [sum(value for _, value in samples) for samples in self._samples(name)]

    def _samples(self, name: str) -> list[list[tuple[str, float]]]:
        """Return for each gateway the samples that begin with `name`, and their values."""
        found = []
        for index in range(self.gateways):
            lines = ask(f"http://127.0.0.1:{self.metrics_port + index}/metrics").text.splitlines()
            parts = [line.rpartition(" ") for line in lines if line.startswith(name)]
            found.append([(labels, float(value)) for labels, _, value in parts])
        return found

    def wait_until(self, is_so: Callable[[], bool], what: str, patience: float = READY_SECONDS) -> None:
        """Return once it is so; AssertionError with what was said when it takes too long."""
        until = time.monotonic() + patience
        while True:
            with suppress(OSError, LookupError):
                if is_so():
                    return
            assert time.monotonic() < until, f"{what}\n{self.said()[-8000:]}"
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        """Return once both gateways have all engines ready."""
        self.wait_until(
            lambda: all(len(one) == self.engines for one in self.places().values()), "some engine isn't ready"
        )

    def served(self) -> dict[str, dict[str, int]]:
        """Return what the foreign server says that it ran, by request: tokens of the prompt and of the answer."""
        with open_directly(f"http://127.0.0.1:{self.upstream_port}/stats", timeout=30) as answer:
            return dict(json.load(answer))

    def leases(self) -> int:
        """Return how many leases and waiting requests the rate store holds, those that have ended left out."""
        return sum(self.stack.script("leases").values())

    def audit(self) -> dict[str, Any]:
        """Return what database, both workers' records and the foreign server say."""
        return dict(self.stack.script("audit", [str(path) for path in self.stack.records], self.served()))

    def settled(self, patience: float = PATIENCE) -> dict[str, Any]:
        """The same once no hold is open, or after `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            while self.stack.script("holds") and time.monotonic() < until:
                time.sleep(0.1)
            if not (found := self.audit())["holds"] or time.monotonic() >= until:
                return found

    def said(self) -> str:
        """All that its processes wrote."""
        logs = "".join(f"--- {name}\n{part.log.read_text()}" for name, part in self.beside.items() if part.log.exists())
        return logs + "--- serve\n" + "".join(self.stack.said)


@contextmanager
def running_topology(
    server: str,
    variables: Mapping[str, str] | None = None,
    replicated: tuple[str, ...] = ("fake-chat",),
    gateways: int = 2,
    **fake_options: Any,
) -> Iterator[Topology]:
    """Run all of it, ready for work, with a database of the PostgreSQL `server`; the models `replicated` are on both
    nodes. Whatever happens, nothing is left.
    """
    with ExitStack() as parts:
        redis = RedisServer.start()
        parts.callback(redis.stop)
        far_home = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="sluice-far-")))
        metrics_port, upstream_port, control_port = lease_port(gateways), lease_port(), lease_port()
        settings = {
            "REDIS_URL": redis.url,
            "SLUICE_REDIS_SECONDS": "2",  # a busy machine is no dead Redis
            "SLUICE_METRICS_PORT": str(metrics_port),
            "SLUICE_REMOTE_NETWORKS": "127.0.0.0/8",
            "SLUICE_QUEUE_SECONDS": "200",
            **(variables or {}),
        }
        stack = parts.enter_context(
            running_stack(settings, ("--gateways", str(gateways)), server=server, **fake_options)
        )
        stack.records.append(far_home / f"worker-{NODE}.record")
        engines = len({"chat", "embedding", *fake_options}) + len(replicated) + 1  # the foreign server's
        topology = Topology(stack, redis, far_home, metrics_port, upstream_port, control_port, engines, gateways)
        parts.callback(_end, topology)
        _spread(topology, replicated)
        yield topology


def _spread(topology: Topology, replicated: tuple[str, ...]) -> None:
    """Start what `serve` doesn't start, and have the catalogue know of it."""
    stack, far_home = topology.stack, topology.far_home
    stack.manage("nodes", "add", NODE, "--address", f"tcp://127.0.0.1:{lease_port()}")
    (stack.home / f"node-{NODE}.key").rename(far_home / f"node-{NODE}.key")
    celery = [sys.executable, "-m", "celery", "-A", "operation"]
    upstream = [sys.executable, "-m", "tests.stack.programs.upstream", "--port", str(topology.upstream_port)]
    control = [sys.executable, "manage.py", "gateway", "--plane", "control"]
    pages = {"SLUICE_METRICS_PORT": "0", "SLUICE_DATA_PLANE": f"http://127.0.0.1:{topology.metrics_port}"}
    far = stack.environment | {"SLUICE_HOME": str(far_home), "DATABASE_URL": _url_of_the_node(stack)}
    for name, command, environment in (
        ("upstream", upstream, stack.environment),
        (NODE, [sys.executable, "manage.py", "worker", "--node", NODE], far),
        ("celery", [*celery, "worker", "--concurrency", "1", "--pool", "solo"], stack.environment),
        ("beat", [*celery, "beat", "--pidfile="], stack.environment),
        ("control", [*control, "--port", str(topology.control_port)], stack.environment | pages),
    ):
        topology.beside[name] = Process(command, environment, far_home / f"{name}.log")
        topology.beside[name].start()
    topology.wait_until(lambda: topology.served() == {}, "the foreign server doesn't answer")
    stack.script("spread", NODE, replicated, f"http://127.0.0.1:{topology.upstream_port}")
    topology.wait_until_ready()


def _url_of_the_node(stack: Stack) -> str:
    """Make the role that docs/nodes.md advises, which may read a node's tables alone, and return its DATABASE_URL."""
    url = stack.environment["DATABASE_URL"]
    advice = (ROOT / "docs/nodes.md").read_text()
    block = re.search(r"```sql\n(CREATE ROLE \w+) .*?(GRANT .*?;)\n```", advice, re.DOTALL)
    assert block is not None
    create, grant = block.groups()
    with psycopg.connect(url, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateObject):  # roles are the server's, which other topologies use too
            connection.execute(f"{create} LOGIN")
        connection.execute(grant)
    return urlsplit(url)._replace(netloc=f"{create.split()[-1]}@{urlsplit(url).netloc.rpartition('@')[2]}").geturl()


def _end(topology: Topology) -> None:
    for part in reversed(topology.beside.values()):
        part.end()
