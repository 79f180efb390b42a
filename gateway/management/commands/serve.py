"""``manage.py serve``: everything that an embedded Sluice needs, under one supervisor."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection

from gateway.home import HomeInUseError, HomeLock, runtime_directory
from gateway.management.doctor import database_problem
from gateway.management.ports import port_problem, readiness_request
from gateway.management.supervisor import FATAL, ChildSpec, Supervisor
from gateway.models import CatalogueEpoch
from gateway.services.worker_specs import WorkerSpecError, clear_socket, fingerprint, save_spec, worker_spec

MANAGE = str(Path(settings.BASE_DIR) / "manage.py")


class Command(BaseCommand):
    """Run gateway, jobs and this node's worker until Ctrl-C; say ``ready`` when the first answer is possible."""

    help = "Run gateway, worker and jobs together."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--node", default="local")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.SLUICE_EMBEDDED:
            try:
                HomeLock.acquire(settings.SLUICE_HOME).release()
            except HomeInUseError as error:
                self.stderr.write(str(error))
                sys.exit(FATAL)
        host, port, node = options["host"], str(options["port"]), options["node"]
        if problem := database_problem() or port_problem(host, options["port"]):
            raise CommandError(problem)
        python, silence = [sys.executable, MANAGE], settings.SLUICE_WATCHDOG_SECONDS
        watch = _Watch(f"http://{host}:{port}", node, self.stdout.write)
        supervisor = Supervisor(
            [
                _child("gateway", [*python, "gateway", "--host", host, "--port", port], 10, silence),
                _child("jobs", [*python, "jobs"], 5, 2 * silence),  # one chunk may wait 20 s for SQLite's only lock
                _child("worker", [*python, "worker", "--node", node], 5, silence),
            ],
            tick=watch.tick,
            say=self.stderr.write,
        )
        if not watch.has_engines:
            supervisor.disable("worker")
        try:
            code = supervisor.run()
        finally:
            clear_socket(node)
        sys.exit(code)


def _child(name: str, command: list[str], deadline: float, silence: float) -> ChildSpec:
    return ChildSpec(name, command, deadline, silence, runtime_directory() / f"{name}.heartbeat")


class _Watch:
    """Looks after what may change while all runs: readiness (told once) and the node's list of models."""

    def __init__(self, base_url: str, node: str, tell: Any) -> None:
        self._base_url = base_url
        self._node = node
        self._tell = tell
        self._started = time.monotonic()
        self._told = False
        self._next_look = 0.0
        self._epoch = -1
        self._complaint = ""
        self._fingerprint = ""
        self.has_engines = True
        self._look(None)

    def tick(self, supervisor: Supervisor) -> None:
        """Called about four times a second."""
        if not self._told:
            self._told = self._tell_ready()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + 1.0
            self._look(supervisor)

    def _tell_ready(self) -> bool:
        question = readiness_request(self._base_url)
        if not self.has_engines:
            question.selector = "/healthz"
        try:
            with urllib.request.urlopen(question, timeout=0.5) as answer:  # noqa: S310 - our own
                states: dict[str, str] = json.load(answer).get("deployments", {})
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
            return False
        if "loading" in states.values():
            return False
        seconds = time.monotonic() - self._started
        note = "" if self.has_engines else " (no model yet: `manage.py models add`)"
        self._tell(f"ready in {seconds:.1f} s on {self._base_url}{note}")
        for name, state in states.items():
            if state != "ready":
                self._tell(f"not served: {name}: {state}")
        return True

    def _look(self, supervisor: Supervisor | None) -> None:
        """Tell the worker what it has to serve now; start it anew only where more than its models has changed."""
        try:
            epoch = CatalogueEpoch.objects.values_list("epoch", flat=True).first()
            if epoch == self._epoch:
                return
            spec = worker_spec(self._node)
        except (DatabaseError, WorkerSpecError) as error:
            if str(error) != self._complaint:
                self._tell(f"the worker keeps what it runs: {error}")
            self._complaint = str(error)
            return
        finally:
            connection.close()
        changed = fingerprint(spec) != self._fingerprint
        self._epoch, self._fingerprint, self._complaint = epoch or 0, fingerprint(spec), ""
        self.has_engines = bool(spec.engines)
        if supervisor is None:
            return
        save_spec(spec, self._node)
        if changed:
            supervisor.restart("worker")
        elif self.has_engines:
            supervisor.enable("worker")
