"""Add, change and remove models and deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from routing.models import Deployment, ModelAlias, Node, PublicModel, Replica
from routing.tasks import is_automatic

LOCAL = "local"
"""The node of the worker on the gateway's own machine."""


@transaction.atomic
def add_model(
    *,
    name: str,
    kinds: Sequence[str],
    context_length: int,
    rate_card: str,
    source: str,
    description: str = "",
    backend: str = Deployment.Backend.WORKER,
    options: Mapping[str, Any] | None = None,
    deployment: str = "",
    nodes: Sequence[str] = (LOCAL,),
    credential: str = "",
    default_max_tokens: int | None = None,
) -> Deployment:
    """Make `name` an active public model with a deployment that serves `source`, or update both; return the deployment.

    `credential` is sealed already. Without `default_max_tokens` a model keeps the one that it has, and without
    `deployment` the deployment's name is made from the model's. One of the backend ``worker`` gets replicas on `nodes`,
    and keeps those that it has; raise `Node.DoesNotExist` for an unknown one.
    """
    terms = {
        "kinds": list(kinds),
        "context_length": context_length,
        "rate_card": rate_card,
        "description": description,
        "is_active": True,
    }
    if default_max_tokens is not None:
        terms["default_max_tokens"] = default_max_tokens
    model, _ = PublicModel.objects.update_or_create(name=name, defaults=terms)
    row, _ = Deployment.objects.update_or_create(
        name=deployment or _default_name(model),
        defaults={
            "model": model,
            "backend": backend,
            "source": source,
            "options": dict(options or {}),
            "credential": credential,
            "is_active": True,
        },
    )
    if row.backend == Deployment.Backend.WORKER:
        for node in nodes:
            Replica.objects.get_or_create(deployment=row, node=node_named(node))
    return row


@transaction.atomic
def change_model(model: PublicModel, **terms: Any) -> None:
    """Change a model that is there; raise ValidationError by field."""
    changed = [name for name, value in terms.items() if getattr(model, name) != value]
    for name in changed:
        setattr(model, name, terms[name])
    if changed:
        model.full_clean(exclude=["name"])
        model.save(update_fields=changed)


def place_locally(deployment: Deployment) -> bool:
    """Give a worker's deployment that has no replica one on this machine; False when it needs none."""
    if deployment.backend != Deployment.Backend.WORKER or deployment.replicas.exists():
        return False
    Replica.objects.create(deployment=deployment, node=node_named(LOCAL))
    return True


def node_named(name: str) -> Node:
    """Return the node; that of this machine is made when it is first needed. Raise `Node.DoesNotExist`."""
    return Node.objects.get_or_create(name=LOCAL)[0] if name == LOCAL else Node.objects.get(name=name)


@transaction.atomic
def remove_model(name: str) -> bool:
    """Make `name` and its deployments inactive; False when there is no such active model.

    Rows stay, since usage records name them.
    """
    withdrawn = PublicModel.objects.filter(name=name, is_active=True).first()
    for row in (withdrawn, *Deployment.objects.filter(model__name=name, is_active=True)):
        if row is not None:
            row.is_active = False
            row.save(update_fields=["is_active"])
    return withdrawn is not None


@transaction.atomic
def set_alias(name: str, target: str) -> None:
    """Make `name` another name for the `target`, a model, ``auto`` or ``auto:<task>``; for none, no name any more.

    Raise ValueError as `check_alias` does.
    """
    if target:
        check_alias(name, target)
        ModelAlias.objects.update_or_create(name=name, defaults={"target": target})
    else:
        ModelAlias.objects.filter(name=name).delete()


def check_alias(name: str, target: str) -> None:
    """Raise ValueError for a name that a model has, and a target that there isn't."""
    active = PublicModel.objects.filter(is_active=True)
    if is_automatic(name) or active.filter(name=name).exists():
        raise ValueError(f"{name} is a model already: choose another name")
    if not is_automatic(target) and not active.filter(name=target, tenant=None).exists():
        raise ValueError(f"there is no model {target}: see `manage.py models list`")


def models_seen(tenant: UUID | None, project: UUID | None = None) -> QuerySet[PublicModel]:
    """Return everybody's models and the tenant's own; with a `project` of these those that it may use."""
    own = Q(tenant=tenant)
    if project is not None:
        own &= Q(project=None) | Q(project=project)
    return PublicModel.objects.filter(Q(tenant=None) | own)


def _default_name(model: PublicModel) -> str:
    """Return the default name of the model's deployment: its slug, numbered when another model's deployment has it."""
    slug = slug_of(model.name)
    taken = set(Deployment.objects.filter(name__startswith=slug).exclude(model=model).values_list("name", flat=True))
    return next(name for n in count(1) if (name := slug if n == 1 else f"{slug}-{n}") not in taken)


def slug_of(name: str) -> str:
    """Return `name` in lower case with dashes for all but letters and digits, at most 80 characters."""
    return "-".join(part for part in "".join(c if c.isalnum() else " " for c in name.lower()).split())[:80]


def cards_of_models() -> dict[str, str]:
    """Return the name of the price list of each model that has one, an adapter's its base's where it has none."""
    rows = PublicModel.objects.values_list("name", "rate_card", "adapter__base__rate_card")
    return {name: card for name, own, of_base in rows if (card := own or of_base)}
