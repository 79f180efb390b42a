"""``manage.py serve``: everything that an embedded Sluice needs, under one supervisor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection

from base.home import runtime_directory
from fleet.worker_specs import clear_socket
from gateway.logs import configure_logs, for_reader
from gateway.runtime.gateway_lock import FileLock, GatewayRunningError
from operation.schema import need_database
from operation.serve.address import address_of, announced
from operation.serve.following import Following, require_node
from operation.serve.gateways import Gateways, gateways_problem, ports_problem
from operation.serve.processes import ChildSpec
from operation.serve.starting import Starting
from operation.serve.supervisor import FATAL, Supervisor
from operation.setup import demo
from operation.setup.steps import Steps, told, welcome

log = structlog.get_logger(__name__)

MANAGE = str(Path(settings.BASE_DIR) / "manage.py")


class Command(BaseCommand):
    """Run gateway, jobs and this node's worker until Ctrl-C; say ``ready`` when the first answer is possible."""

    help = "Run gateway, worker and jobs together."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--gateways", type=int, default=1, help="processes on the port (PostgreSQL and Redis)")
        parser.add_argument("--node", default="local")
        parser.add_argument("--welcome", action="store_true", help="say how to begin, once ready")

    def handle(self, *args: Any, **options: Any) -> None:
        configure_logs()
        need_database()
        if settings.SLUICE_EMBEDDED:
            try:
                FileLock.take(Path(settings.DATABASES["default"]["NAME"])).release()
            except GatewayRunningError as error:
                self.stderr.write(str(error))
                sys.exit(FATAL)
        host, port, node, count = options["host"], options["port"], options["node"], options["gateways"]
        require_node(node)
        if problem := gateways_problem(count):
            raise CommandError(problem, returncode=os.EX_CONFIG)
        if problem := ports_problem(host, port, count):
            raise CommandError(problem)
        python, silence = [sys.executable, MANAGE], settings.SLUICE_WATCHDOG_SECONDS
        base_url = address_of(host, port)
        steps = Steps(sys.stdout)
        starting = Starting(base_url, self._tell, steps.show, steps.end)

        def begun() -> None:
            if options["welcome"]:
                self._welcome(base_url)

        gateways = Gateways(host, port, count)
        following = Following(node, self._tell)
        following.look(None)
        watch = _Watch(following, starting, begun, gateways.names)
        supervisor = Supervisor(
            [
                *gateways.specs(python, silence),
                _child("jobs", [*python, "jobs"], 5, 2 * silence),  # a chunk may wait 20 s for SQLite's only lock
                _child("worker", [*python, "worker", "--node", node], 5, silence),
            ],
            tick=watch.tick,
            say=log.warning,
            hangup=gateways.replace,
        )
        if not following.has_engines:
            supervisor.disable("worker")
        try:
            with announced(base_url):
                code = supervisor.run()
                if code == 0:
                    self._tell("stopped")
        finally:
            gateways.close()
            clear_socket(node)
        sys.exit(code)

    def _welcome(self, base_url: str) -> None:
        try:
            if sys.stdout.isatty():
                self.stdout.write(told(welcome(base_url)))
                self.stdout.flush()
            else:  # no key in a log
                demo.ensure_demo()
                self._tell(f"the API key is in {demo.demo_file()}; `manage.py quickstart` prints it and a sign-in link")
        except DatabaseError as error:
            self._tell(f"no sign-in link could be made ({error}): `manage.py quickstart` makes one")
        finally:
            connection.close()

    def _tell(self, line: str) -> None:
        """Write a line for people at a terminal, and elsewhere one of the log."""
        if sys.stdout.isatty():
            self.stdout.write(for_reader(line))
            self.stdout.flush()
        else:
            log.info(line)


def _child(name: str, command: list[str], deadline: float, silence: float) -> ChildSpec:
    return ChildSpec(name, command, deadline, silence, runtime_directory() / f"{name}.heartbeat")


class _Watch:
    """Looks after what may change while all runs: how far the start is (until it is over, when `begun` is called once)
    and the node's list of models.
    """

    def __init__(
        self, following: Following, starting: Starting, begun: Callable[[], None], gateways: Sequence[str]
    ) -> None:
        self._following = following
        self._starting = starting
        self._begun = begun
        self._gateways = gateways
        self._told = False
        self._next_look = 0.0

    def tick(self, supervisor: Supervisor) -> None:
        """Called about four times a second."""
        if not self._told:
            # Until they serve, whoever connects waits in the socket's queue.
            is_served = all(map(supervisor.has_shown_life, self._gateways))
            self._told = self._starting.is_over(self._following.names, is_served=is_served)
            if self._told:
                self._begun()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + 1.0
            self._following.look(supervisor)
