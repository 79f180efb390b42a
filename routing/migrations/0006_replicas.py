"""Every worker's deployment gets a replica on the node that it named."""

from __future__ import annotations

from typing import Any

from django.db import migrations


def to_replicas(apps: Any, schema_editor: Any) -> None:
    nodes, replicas = apps.get_model("routing", "Node").objects, apps.get_model("routing", "Replica").objects
    for deployment in apps.get_model("routing", "Deployment").objects.filter(backend="worker"):
        node, _ = nodes.get_or_create(name=deployment.node)
        replicas.get_or_create(deployment=deployment, node=node)


def to_nodes(apps: Any, schema_editor: Any) -> None:
    """Keep the first node of each deployment, which then has one only."""
    for replica in apps.get_model("routing", "Replica").objects.order_by("-node__name"):
        replica.deployment.node = replica.node.name
        replica.deployment.save(update_fields=["node"])


class Migration(migrations.Migration):

    dependencies = [
        ("routing", "0005_nodes"),
    ]

    operations = [migrations.RunPython(to_replicas, to_nodes)]
