"""``manage.py worker``: the worker process of a node."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.home import runtime_directory
from fleet.worker_specs import (
    WorkerSpecError,
    clear_socket,
    node_address,
    save_spec,
    spec_file,
    worker_environment,
    worker_spec,
)
from gateway.logs import configure_logs
from operation.schema import need_database
from operation.serve.following import CHILD, Following, require_node
from operation.serve.processes import ChildSpec, hide_environment
from operation.serve.supervisor import Supervisor

DRAIN_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Run the models of a node.

    For this machine's node: write the spec of its deployments and exec ``python -m inference.worker``, which knows
    nothing else; `serve` looks after it. For a node with an address: keep such a process running until told to stop,
    also while the database is away, and let it follow the catalogue.
    """

    help = "Run the models of a node."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--node", default="local")
        parser.add_argument("--listen", default="", help="tcp://address:port to listen at, instead of every interface")
        parser.add_argument("--keys", default="", help="the node's key file, if it isn't SLUICE_HOME/node-NAME.key")

    def handle(self, *args: Any, **options: Any) -> None:
        need_database()
        node = options["node"]
        where = {"listen": options["listen"], "keys": options["keys"] and str(Path(options["keys"]).resolve())}
        try:
            require_node(node)
            if node_address(node):
                self._supervise(node, where)
            save_spec(worker_spec(node, **where), node)
        except WorkerSpecError as error:
            raise CommandError(str(error)) from error
        os.chdir(settings.BASE_DIR)
        os.execve(sys.executable, _command(node), worker_environment(os.environ))  # noqa: S606

    def _supervise(self, node: str, where: dict[str, str]) -> NoReturn:
        configure_logs()
        hide_environment()  # the worker, which runs foreign models, isn't given the address of the database either
        following = Following(node, log.warning, **where)
        following.look(None)
        save_spec(worker_spec(node, **where), node)
        os.chdir(settings.BASE_DIR)
        next_look = 0.0

        def tick(supervisor: Supervisor) -> None:
            nonlocal next_look
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + 1.0
                following.look(supervisor)

        heartbeat = runtime_directory() / f"worker-{node}.heartbeat"
        child = ChildSpec(
            CHILD,
            _command(node),
            DRAIN_SECONDS,
            settings.SLUICE_WATCHDOG_SECONDS,
            heartbeat,
            environment=worker_environment(os.environ),
            inherits=False,
        )
        try:
            code = Supervisor([child], tick=tick, say=log.warning).run()
        finally:
            clear_socket(node)
        sys.exit(code)


def _command(node: str) -> list[str]:
    """Return the command of the worker process, which knows its spec and nothing else."""
    return [sys.executable, "-m", "inference.worker", "--spec", str(spec_file(node))]
