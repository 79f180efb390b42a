"""``manage.py models add|add-remote|alias|list|remove``: what is served."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from base.errors import ServiceError
from base.home import as_meant
from fleet.adapters import add_adapter_folder, remove_adapter
from fleet.engine_states import EngineState, wait_for_adapter, wait_until_loaded
from fleet.local_models import add_local_model
from fleet.remote_models import add_remote_model
from fleet.removal import withdraw
from fleet.worker_specs import WorkerSpecError, engine_config, is_worker_running, save_spec, worker_spec
from inference.open import remote_dialects
from routing.models import Adapter, Deployment, Node
from routing.services.catalogue import LOCAL, remove_model, set_alias
from routing.services.defaults import ensure_default_routes
from tenancy.models import Tenant

REMOTE_OPTIONS = ("max_context", "max_output", "concurrency", "shared_prefixes", "images")
START_SECONDS = 10.0  # `serve` starts a worker for the first model of its node


class Command(BaseCommand):
    """Add a model (by hub id, folder or GGUF file; or at a foreign server), list them, or withdraw one.

    A running worker or gateway follows at once.
    """

    help = "Add, list and remove models."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="serve a model")
        add.add_argument("source", help="hub id (owner/name), folder, or GGUF file")
        add.add_argument("--name", default="", help="public name; that of the folder, file or hub id if not given")
        add.add_argument("--rate-card", default="", help="price list; one of the model's name if not given")
        add.add_argument(
            "--node", action="append", help="serve it on this node; may be repeated; this machine if not given"
        )
        add.add_argument("--adapter-of", default="", metavar="MODEL", help="the folder is a LoRA adapter of this model")
        add.add_argument("--tenant", default="", help="with --adapter-of: the only tenant that sees it, by its slug")
        add.add_argument(
            "--default-max-tokens", type=int, help="most tokens of an answer whose request doesn't say max_tokens"
        )
        add.add_argument("--options", default="{}", help='engine options as JSON, e.g. {"dtype": "float32"}')
        add.add_argument(
            "--quantization",
            choices=["w8a8", "int4", "fp8"],
            help="linear layers in eight bits, weights in four, or float8; the checkpoint's precision if not given",
        )
        _add_remote_arguments(verbs.add_parser("add-remote", help="serve a model that runs at a foreign server"))
        alias = verbs.add_parser("alias", help="another name for a model or auto")
        alias.add_argument("name", help="as clients ask for it, such as gpt-4o")
        alias.add_argument("target", nargs="?", default="", help="a model, auto or auto:TASK; none: no alias any more")
        verbs.add_parser("list", help="what is served")
        remove = verbs.add_parser("remove", help="withdraw a model")
        remove.add_argument("name")
        remove.add_argument(
            "--force", action="store_true", help="also where rules, adapters or plans stand on it: mend them"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "add" if options["adapter_of"]:
                self._add_adapter(options)
            case "add" if options["tenant"]:
                raise CommandError("--tenant is for adapters: see --adapter-of")
            case "add":
                self._add(options)
            case "add-remote":
                self._add_remote(options)
            case "alias":
                self._alias(options["name"], options["target"])
            case "list":
                self._list()
            case "remove":
                self._remove(options["name"], force=options["force"])

    def _add(self, options: dict[str, Any]) -> None:
        engine_options = _options_of(options["options"])
        if options["quantization"]:
            engine_options["quantization"] = options["quantization"]
        self._tell(f"looking for {options['source']}")
        served_before = set(_active().values_list("name", flat=True))
        try:
            row = add_local_model(
                source=options["source"],
                name=options["name"],
                rate_card=options["rate_card"],
                options=engine_options,
                nodes=options["node"] or (LOCAL,),
                default_max_tokens=options["default_max_tokens"],
                tell=self._tell,
            )
        except ServiceError as error:
            raise CommandError(str(error)) from error
        ensure_default_routes()
        self._tell(f"in the catalogue: {row.model.name}, priced by {row.model.rate_card}, from {_source(row)}")
        here, away = _nodes(row)
        for node in away:
            self._tell(f"the worker of {node} loads it when it sees this: its log and the admin say how that ends")
        if not here:
            return
        state = self._loaded(row, here[0])
        if state is None:
            self._tell(f"no worker runs here: {row.model.name} will be loaded when one starts (`manage.py serve`)")
        elif state.trouble:
            if row.name not in served_before:
                remove_model(row.model.name)
                self._follow(here[0])
            raise CommandError(f"{row.model.name} is not served: {state.trouble}")
        else:
            context = f", context {state.info.max_context} tokens" if state.info else ""
            self._tell(f"served: {row.model.name}{context}")

    def _add_adapter(self, options: dict[str, Any]) -> None:
        folder = Path(options["source"])
        tenant = Tenant.objects.filter(slug=options["tenant"]).first() if options["tenant"] else None
        if options["tenant"] and tenant is None:
            raise CommandError(f"there is no tenant {options['tenant']!r}")
        try:
            adapter = add_adapter_folder(
                folder,
                base=options["adapter_of"],
                name=options["name"] or folder.resolve().name,
                rate_card=options["rate_card"],
                tenant=tenant,
            )
        except ServiceError as error:
            raise CommandError(": ".join(filter(None, (error.field, error.message)))) from error
        name = adapter.model.name
        card = adapter.model.rate_card or f"what prices {adapter.base.name}"
        size = f"{adapter.bytes / 1e6:.1f} MB of tensors"
        self._tell(f"in the catalogue: {name}, rank {adapter.rank}, {size}, priced by {card}")
        for row in _active().filter(model=adapter.base):
            here, away = _nodes(row)
            for node in away:
                self._tell(f"the worker of {node} reads it when it sees this: its log and the admin say how that ends")
            for node in here:
                self._follow(node)
                reason = wait_for_adapter(node, str(row.id), str(adapter.id), partial(is_worker_running, node))
                if reason:
                    remove_adapter(name)
                    self._follow(node)
                    raise CommandError(f"{name} is not served: {reason}")
                self._tell(f"no worker runs for {node}" if reason is None else f"served: {name} on {node}")

    def _alias(self, name: str, target: str) -> None:
        try:
            set_alias(name, target)
        except ValueError as error:
            raise CommandError(str(error)) from error
        self._tell(f"{name} means {target}" if target else f"{name} is no alias")

    def _add_remote(self, options: dict[str, Any]) -> None:
        chosen = {name: options[name] for name in REMOTE_OPTIONS if options[name] is not None}
        self._tell(f"sending a test prompt to {options['address']}")
        try:
            added = add_remote_model(
                address=options["address"],
                dialect=options["dialect"],
                model=options["model"],
                name=options["name"],
                kinds=[kind.strip() for kind in options["kinds"].split(",")],
                api_key=_secret_in(options["api_key_file"]),
                rate_card=options["rate_card"],
                options=_options_of(options["options"]) | chosen,
            )
        except ServiceError as error:
            raise CommandError(": ".join(filter(None, (error.field, error.message)))) from error
        for name, value in added.tried.info.details.items():
            self._tell(f"{name}: {value}")
        for line in added.lines:
            self._tell(line)
        row, context = added.deployment, added.tried.info.max_context
        self._tell(f"served: {row.model.name} by {row.name}, priced by {row.model.rate_card}, context {context} tokens")

    def _loaded(self, row: Deployment, node: str) -> EngineState | None:
        """Wait until the worker of a node of this machine has loaded or refused it; None when no worker runs."""
        self._follow(node)
        self._tell("loading and proving it")
        until = time.monotonic() + START_SECONDS

        def is_running() -> bool:
            return is_worker_running(node) or time.monotonic() < until

        return wait_until_loaded(node, str(row.id), engine_config(row).revision, is_running)

    def _remove(self, name: str, *, force: bool) -> None:
        nodes = {node for row in _active().filter(model__name=name) for node in _nodes(row)[0]}
        if Adapter.objects.filter(Q(model__name=name) | Q(base__name=name)).exists():
            nodes |= {node.name for node in Node.objects.filter(address="")}
        try:
            done = withdraw(name, mends=force)
        except ServiceError as error:
            raise CommandError(
                f"{name} is not withdrawn. {error.message} --force withdraws it and does that"
            ) from error
        if not done:
            raise CommandError(f"no model {name!r}: see `manage.py models list`")
        for node in nodes:
            self._follow(node)
        for line in done:
            self._tell(line)

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
            where = ", ".join(name for names in _nodes(row) for name in names)
            self.stdout.write(
                f"{row.model.name}  {kinds}  {row.model.context_length} tokens  {_source(row) or row.backend}  {where}"
            )
        for adapter in Adapter.objects.filter(model__is_active=True).select_related(
            "model__tenant", "model__project", "base"
        ):
            tenant, project = adapter.model.tenant, adapter.model.project
            whose = f"  only {tenant.slug}" + (f", {project.name}" if project else "") if tenant else ""
            self.stdout.write(f"{adapter.model.name}  adapter of {adapter.base.name}, rank {adapter.rank}{whose}")
        if not rows:
            self.stdout.write("no model yet: manage.py models add <hub id | folder | GGUF file>")

    def _tell(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _add_remote_arguments(add: CommandParser) -> None:
    add.add_argument("address", help="such as http://10.0.0.5:8000")
    add.add_argument("--dialect", choices=remote_dialects(), default="generic", help="what kind of server it is")
    add.add_argument("--model", required=True, help="what the server calls the model")
    add.add_argument("--name", default="", help="public name; the server's if not given")
    add.add_argument("--kinds", default="chat", help="chat, embedding, score, classification, or several with commas")
    add.add_argument("--api-key-file", help="file with the server's API key; - reads standard input")
    add.add_argument("--rate-card", default="", help="price list; one of the model's name if not given")
    add.add_argument("--max-context", type=int, help="tokens, where the server doesn't say")
    add.add_argument("--max-output", type=int, help="most output tokens of one request (4096)")
    add.add_argument("--concurrency", type=int, help="most requests that a gateway has there at once (64)")
    add.add_argument(
        "--shared-prefixes", action="store_true", default=None, help="accept that tenants share its prefix cache"
    )
    add.add_argument(
        "--images",
        choices=["none", "data", "urls"],
        help="which images it sees: sent along, or also by their addresses",
    )
    add.add_argument("--options", default="{}", help='more options as JSON, e.g. {"idle_seconds": 120}')


def _options_of(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"--options is not JSON: {error}") from error
    if not isinstance(options, dict):
        raise CommandError('--options takes one JSON object, such as {"dtype": "float32"}')
    return options


def _secret_in(path: str | None) -> str:
    """Return what the file holds: on the command line everybody on the machine could read it."""
    if path is None:
        return ""
    try:
        return (sys.stdin.read() if path == "-" else Path(path).read_text()).strip()
    except OSError as error:
        raise CommandError(f"--api-key-file: {error}") from error


def _nodes(row: Deployment) -> tuple[list[str], list[str]]:
    """Return the names of the nodes of this machine that have a replica of the deployment, and of all others."""
    nodes = Node.objects.filter(replicas__deployment=row)
    return [node.name for node in nodes if not node.address], [node.name for node in nodes if node.address]


def _source(row: Deployment) -> str:
    """Return where the weights are here; ``home:…`` where only other machines have them, each below its own home."""
    here, away = _nodes(row)
    return row.source if away and not here else as_meant(row.source)


def _active() -> Any:
    return Deployment.objects.filter(is_active=True, model__is_active=True)
