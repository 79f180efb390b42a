"""``manage.py nodes add|list|keys|remove``: the machines whose workers serve models (docs/nodes.md)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.errors import ServiceError
from fleet.nodes import add_node, key_file, remove_node, renew_keys
from routing.models import Node


class Command(BaseCommand):
    """Add a machine with a worker, list them, give one new keys, or remove one."""

    help = "Add, list and remove the machines that run workers."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="add a node and make its keys")
        add.add_argument("name")
        add.add_argument("--address", required=True, help="where gateways reach its worker: tcp://host:port")
        verbs.add_parser("list", help="nodes, their addresses and what they serve")
        keys = verbs.add_parser("keys", help="make new keys for a node; its worker has to be started with them")
        keys.add_argument("name")
        remove = verbs.add_parser("remove", help="remove a node and its replicas")
        remove.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["verb"]:
                case "add":
                    self._tell_keys(add_node(options["name"], options["address"]))
                case "keys":
                    self._tell_keys(renew_keys(options["name"]))
                case "remove":
                    remove_node(options["name"])
                    self.stdout.write(f"{options['name']} is removed; what runs there ends by itself")
                case "list":
                    self._list()
        except ServiceError as error:
            raise CommandError(str(error)) from error

    def _tell_keys(self, node: Node) -> None:
        path = key_file(node.name)
        self.stdout.write(
            f"keys of {node.name}: {path}\n"
            f"move this file to the SLUICE_HOME of that machine (it must not stay here) and run there:\n"
            f"  manage.py worker --node {node.name}"
        )

    def _list(self) -> None:
        for node in Node.objects.prefetch_related("replicas__deployment"):
            served = ", ".join(replica.deployment.name for replica in node.replicas.all()) or "nothing"
            seen = f"seen {node.seen_at:%Y-%m-%d %H:%M:%S} UTC" if node.seen_at else "not seen yet"
            state = "" if node.is_active else "  inactive"
            self.stdout.write(f"{node.name}  {node.address or 'this machine'}  {seen}{state}  {served}")
