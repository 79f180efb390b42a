"""``manage.py worker``: become the worker process of a node."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

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
        if not spec.engines:
            raise CommandError(f"node {options['node']} has no deployment: add one with `manage.py models add`")
        path = save_spec(spec, options["node"])
        # An OpenMP thread that lost its core for a moment must not stall the others; see docs/decisions.
        environment = {"GOMP_SPINCOUNT": "1000", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **os.environ}
        os.execve(sys.executable, [sys.executable, "-m", "inference.worker", "--spec", str(path)], environment)  # noqa: S606
