"""``manage.py models add|list|remove``: what this node serves."""

from __future__ import annotations

import json
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.errors.service import ServiceError
from gateway.services.engine_states import EngineState, wait_until_loaded
from gateway.services.local_models import add_local_model
from gateway.services.worker_specs import WorkerSpecError, engine_config, is_worker_running, save_spec, worker_spec
from routing.models import Deployment
from routing.services.catalogue import remove_model
from routing.services.defaults import ensure_default_routes

START_SECONDS = 10.0  # `serve` starts a worker for the first model of its node


class Command(BaseCommand):
    """Add a model by hub id, folder or GGUF file, list them, or withdraw one; a running worker follows at once."""

    help = "Add, list and remove models."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="serve a model")
        add.add_argument("source", help="hub id (owner/name), folder, or GGUF file")
        add.add_argument("--name", default="", help="public name; that of the folder, file or hub id if not given")
        add.add_argument("--rate-card", default="", help="price list; one of the model's name if not given")
        add.add_argument("--options", default="{}", help='engine options as JSON, e.g. {"dtype": "float32"}')
        verbs.add_parser("list", help="what is served")
        remove = verbs.add_parser("remove", help="withdraw a model")
        remove.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "add":
                self._add(options)
            case "list":
                self._list()
            case "remove":
                self._remove(options["name"])

    def _add(self, options: dict[str, Any]) -> None:
        try:
            engine_options = json.loads(options["options"])
        except json.JSONDecodeError as error:
            raise CommandError(f"--options is not JSON: {error}") from error
        if not isinstance(engine_options, dict):
            raise CommandError('--options takes one JSON object, such as {"dtype": "float32"}')
        self._tell(f"looking for {options['source']}")
        served_before = set(_active().values_list("name", flat=True))
        try:
            row = add_local_model(
                source=options["source"],
                name=options["name"],
                rate_card=options["rate_card"],
                options=engine_options,
                tell=self._tell,
            )
        except ServiceError as error:
            raise CommandError(str(error)) from error
        ensure_default_routes()
        self._tell(f"in the catalogue: {row.model.name}, priced by {row.model.rate_card}, from {row.source}")
        state = self._loaded(row)
        if state is None:
            self._tell(f"no worker runs here: {row.model.name} will be loaded when one starts (`manage.py serve`)")
        elif state.trouble:
            if row.name not in served_before:
                remove_model(row.model.name)
                self._follow(row.node)
            raise CommandError(f"{row.model.name} is not served: {state.trouble}")
        else:
            context = f", context {state.info.max_context} tokens" if state.info else ""
            self._tell(f"served: {row.model.name}{context}")

    def _loaded(self, row: Deployment) -> EngineState | None:
        """Wait until the node's worker has loaded or refused the deployment; None when no worker runs."""
        self._follow(row.node)
        self._tell("loading and proving it")
        until = time.monotonic() + START_SECONDS

        def is_running() -> bool:
            return is_worker_running(row.node) or time.monotonic() < until

        return wait_until_loaded(row.node, str(row.id), engine_config(row).revision, is_running)

    def _remove(self, name: str) -> None:
        nodes = set(_active().filter(model__name=name).values_list("node", flat=True))
        if not remove_model(name):
            raise CommandError(f"no model {name!r}: see `manage.py models list`")
        for node in nodes:
            self._follow(node)
        self._tell(f"{name} is withdrawn; what it still answers ends by itself")

    def _follow(self, node: str) -> None:
        """Let a worker of the node that runs on this home know, whether or not `serve` looks after it."""
        try:
            save_spec(worker_spec(node), node)
        except WorkerSpecError as error:
            raise CommandError(f"the worker keeps what it serves: {error}") from error

    def _list(self) -> None:
        rows = _active().select_related("model")
        for row in rows:
            kinds = ", ".join(row.model.kinds)
            self.stdout.write(
                f"{row.model.name}  {kinds}  {row.model.context_length} tokens  {row.source or row.backend}"
            )
        if not rows:
            self.stdout.write("no model yet: manage.py models add <hub id | folder | GGUF file>")

    def _tell(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _active() -> Any:
    return Deployment.objects.filter(is_active=True, model__is_active=True)
