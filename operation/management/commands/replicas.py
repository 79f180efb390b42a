"""``manage.py replicas add|remove|list``: the nodes on which deployments are loaded (docs/nodes.md)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.errors import ServiceError
from fleet.replicas import add_replica, is_here, remove_replica
from fleet.worker_specs import WorkerSpecError, save_spec, worker_spec
from routing.models import Deployment


class Command(BaseCommand):
    """Serve a deployment on one more node, take it off one, or list where each is served.

    Running workers and gateways follow at once.
    """

    help = "Add, remove and list the replicas of deployments."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="serve a deployment on one more node")
        remove = verbs.add_parser("remove", help="take a deployment off a node")
        for verb in (add, remove):
            verb.add_argument("deployment")
            verb.add_argument("node", help="its name; `local` is the worker on this machine")
        add.add_argument("--weight", type=int, default=1, help="2 where it is twice as strong as one with 1")
        verbs.add_parser("list", help="deployments and their nodes")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "list":
            self._list()
            return
        deployment, node = options["deployment"], options["node"]
        try:
            if options["verb"] == "add":
                add_replica(deployment, node, weight=options["weight"])
                said = f"{deployment} is served on {node} once its worker has loaded it: the admin shows when"
            else:
                left = remove_replica(deployment, node)
                said = f"{deployment} is taken off {node}; what it still answers there ends by itself"
                if not left:
                    said += f"\n{deployment} has no replica left and takes no work"
            if is_here(node):
                save_spec(worker_spec(node), node)
        except ServiceError as error:
            raise CommandError(f"{error.field}: {error.message}") from error
        except WorkerSpecError as error:
            raise CommandError(f"the worker keeps what it serves: {error}") from error
        self.stdout.write(said)

    def _list(self) -> None:
        for row in Deployment.objects.filter(backend=Deployment.Backend.WORKER).prefetch_related("replicas__node"):
            nodes = ", ".join(f"{one.node.name} (weight {one.weight})" for one in row.replicas.all()) or "nowhere"
            self.stdout.write(f"{row.name}{'' if row.is_active else '  inactive'}  {nodes}")
