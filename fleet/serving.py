"""Deployments and nodes taken out of service and put back, with what stands on them told before."""

from __future__ import annotations

from django.db import transaction

from base.errors import ServiceError
from fleet.removal import losses_of
from routing.models import Deployment, Node, PublicModel, Replica


def needs_of(deployment: Deployment) -> list[str]:
    """Return what loses its only way to a model with this deployment, a sentence for each kind; none where the model
    has another active deployment, or nothing asks for it.
    """
    model = deployment.model
    others = Deployment.objects.filter(model=model, is_active=True).exclude(pk=deployment.pk)
    if not (deployment.is_active and model.is_active) or others.exists():
        return []
    losses = losses_of(model.name)
    told = [
        ("Rules of auto that have other models, and go on with those", ", ".join(losses.rules)),
        ("Rules of auto that have no other model, and refuse", ", ".join(losses.empty)),
        ("Adapters that run on it alone", ", ".join(losses.adapters)),
        ("Other names that lead to it", ", ".join(losses.aliases)),
        ("Who names it, and gets an error", losses.users),
    ]
    return [f"It is the only active deployment of {model.name}.", *(f"{kind}: {who}." for kind, who in told if who)]


def is_needed(deployment: Deployment) -> bool:
    """Return whether anything stops with the deployment: a rule without another model, an adapter, a name, a plan."""
    return bool(needs_of(deployment)) and losses_of(deployment.model.name).needs_mending


@transaction.atomic
def set_in_service(deployment: Deployment, is_active: bool, *, accepts: bool = False) -> None:
    """Put the deployment into service or take it out: then it takes no new request, and what runs there ends by itself.

    Raise ServiceError, nothing changed, where something needs it and `accepts` is false. The model's row is locked, as
    a withdrawal does, so that of two operators who each take one of its last two out, the second is told.
    """
    PublicModel.objects.select_for_update().get(pk=deployment.model_id)
    row = Deployment.objects.select_related("model").get(pk=deployment.pk)
    if not is_active and not accepts and is_needed(row):
        raise ServiceError("is_active", " ".join(needs_of(row)))
    if row.is_active != is_active:
        row.is_active = is_active
        row.save(update_fields=["is_active"])


def alone_on(node: Node) -> list[Deployment]:
    """Return the active deployments that have no replica on another active node."""
    elsewhere = Replica.objects.filter(node__is_active=True).exclude(node=node).values("deployment")
    rows = Deployment.objects.filter(is_active=True, model__is_active=True, replicas__node=node)
    return list(rows.exclude(pk__in=elsewhere).select_related("model").order_by("name"))


@transaction.atomic
def set_node_in_service(node: Node, is_active: bool, *, accepts: bool = False) -> None:
    """Give the node's worker work, or none any more: what runs there ends by itself.

    Raise ServiceError, nothing changed, where deployments run there alone and `accepts` is false. All nodes are locked,
    in the order of their ids: whether one can go depends on which others stay.
    """
    row = next(one for one in list(Node.objects.select_for_update().order_by("pk")) if one.pk == node.pk)
    if not is_active and row.is_active and not accepts and (alone := alone_on(row)):
        names = ", ".join(one.name for one in alone)
        raise ServiceError("is_active", f"Deployments that run on {row.name} alone: {names}.")
    if row.is_active != is_active:
        row.is_active = is_active
        row.save(update_fields=["is_active"])
