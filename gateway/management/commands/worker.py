"""``manage.py worker``: become the worker process of a node."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.services.worker_environment import worker_environment
from gateway.services.worker_specs import WorkerSpecError, save_spec, worker_spec


class Command(BaseCommand):
    """Write the spec of this node's deployments and exec ``python -m inference.worker``, which knows nothing else."""

    help = "Run the models of a node."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--node", default="local")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            spec = worker_spec(options["node"])
        except WorkerSpecError as error:
            raise CommandError(str(error)) from error
        path = save_spec(spec, options["node"])
        command = [sys.executable, "-m", "inference.worker", "--spec", str(path)]
        os.chdir(settings.BASE_DIR)
        os.execve(sys.executable, command, worker_environment(os.environ))  # noqa: S606
