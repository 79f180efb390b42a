"""``manage.py models add|list|remove``: what this node serves."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.errors.service import ServiceError
from gateway.services.local_models import add_local_model
from routing.models import Deployment
from routing.services.catalogue import remove_model
from routing.services.defaults import ensure_default_routes


class Command(BaseCommand):
    """Add a model by hub id, folder or GGUF file, list them, or withdraw one; a running worker follows by itself."""

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
                if not remove_model(options["name"]):
                    raise CommandError(f"no model {options['name']!r}: see `manage.py models list`")
                self.stdout.write(f"{options['name']} is withdrawn")

    def _add(self, options: dict[str, Any]) -> None:
        try:
            engine_options = json.loads(options["options"])
        except json.JSONDecodeError as error:
            raise CommandError(f"--options is not JSON: {error}") from error
        if not isinstance(engine_options, dict):
            raise CommandError('--options takes one JSON object, such as {"dtype": "float32"}')
        try:
            row = add_local_model(
                source=options["source"],
                name=options["name"],
                rate_card=options["rate_card"],
                options=engine_options,
            )
        except ServiceError as error:
            raise CommandError(str(error)) from error
        ensure_default_routes()
        self.stdout.write(f"{row.model.name} is served as {row.name} from {row.source}")

    def _list(self) -> None:
        rows = Deployment.objects.filter(is_active=True, model__is_active=True).select_related("model")
        for row in rows:
            kinds = ", ".join(row.model.kinds)
            self.stdout.write(
                f"{row.model.name}  {kinds}  {row.model.context_length} tokens  {row.source or row.backend}"
            )
        if not rows:
            self.stdout.write("no model yet: manage.py models add <hub id | folder | GGUF file>")
