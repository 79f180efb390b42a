"""Replicas: on which nodes a deployment of our own workers is loaded."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction

from base.errors import ServiceError
from routing.models import Deployment, Node, Replica
from routing.services.catalogue import LOCAL, node_named


@transaction.atomic
def add_replica(deployment: str, node: str, *, weight: int = 1) -> Replica:
    """Have the node serve the deployment as well, and return the replica; one that is there gets the weight.

    Raise ServiceError for a deployment or a node that isn't there, or that can have none.
    """
    row = _deployment(deployment)
    try:
        place = node_named(node)
    except Node.DoesNotExist:
        raise ServiceError("node", f"there is no node {node!r}: see `manage.py nodes list`") from None
    replica = Replica.objects.filter(deployment=row, node=place).first() or Replica(deployment=row, node=place)
    replica.weight = weight
    try:
        replica.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise ServiceError(field, "; ".join(messages)) from error
    replica.save()
    return replica


@transaction.atomic
def remove_replica(deployment: str, node: str) -> int:
    """Take the deployment off the node, and return how many replicas it has left; what runs there ends by itself.

    Raise ServiceError when the node has none.
    """
    row = _deployment(deployment)
    replica = row.replicas.filter(node__name=node).first()
    if replica is None:
        where = ", ".join(row.replicas.values_list("node__name", flat=True)) or "no node"
        raise ServiceError("node", f"{deployment} has no replica on {node!r}, but on {where}")
    replica.delete()
    return row.replicas.count()


def is_here(node: str) -> bool:
    """Return whether the node's worker runs on the gateways' own machine."""
    return node == LOCAL or Node.objects.filter(name=node, address="").exists()


def _deployment(name: str) -> Deployment:
    row = Deployment.objects.filter(name=name).first()
    if row is None:
        raise ServiceError("deployment", f"there is no deployment {name!r}: see `manage.py replicas list`")
    if row.backend != Deployment.Backend.WORKER:
        raise ServiceError("deployment", f"{name} isn't served by workers of our own, so it has no replicas")
    return row
