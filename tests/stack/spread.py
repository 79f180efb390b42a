"""Run in the stack's home: put the fake chat model on a node as well, and add a foreign server's model.

Arguments: the node's name and the foreign server's address. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from billing.services import cards  # noqa: E402
from routing.models import Deployment, Node, Replica  # noqa: E402
from routing.services.catalogue import add_model  # noqa: E402
from tests.upstream import MODEL  # noqa: E402


def main(node: str, address: str) -> None:
    replica, _ = Replica.objects.get_or_create(
        deployment=Deployment.objects.get(name="fake-chat"), node=Node.objects.get(name=node)
    )
    cards.publish("remote-chat", {0: {"input": 2_000_000, "cache_read": 500_000, "output": 7_000_000}})
    options = {"model": MODEL, "dialect": "vllm", "max_output": 400}
    add_model(
        name="remote-chat",
        kinds=["chat"],
        context_length=8192,
        rate_card="remote-chat",
        source=address,
        backend="openai",
        options=options,
    )
    print(json.dumps({"replica": str(replica.pk)}))


main(*sys.argv[1:])
