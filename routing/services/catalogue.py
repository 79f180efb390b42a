"""Add, change and remove models and deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from django.db import transaction

from routing.models import Deployment, PublicModel


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
    node: str = "local",
) -> Deployment:
    """Make `name` a public model served from `source`, or bring both up to date; return its deployment."""
    model, _ = PublicModel.objects.update_or_create(
        name=name,
        defaults={
            "kinds": list(kinds),
            "context_length": context_length,
            "rate_card": rate_card,
            "description": description,
            "is_active": True,
        },
    )
    row, _ = Deployment.objects.update_or_create(
        name=deployment or _own_name(model),
        defaults={
            "model": model,
            "backend": backend,
            "node": node,
            "source": source,
            "options": dict(options or {}),
            "is_active": True,
        },
    )
    return row


@transaction.atomic
def remove_model(name: str) -> bool:
    """Withdraw `name` and its deployments; False when there is no such active model. Usage keeps its name."""
    withdrawn = PublicModel.objects.filter(name=name, is_active=True).first()
    for row in (withdrawn, *Deployment.objects.filter(model__name=name, is_active=True)):
        if row is not None:
            row.is_active = False
            row.save(update_fields=["is_active"])
    return withdrawn is not None


def _own_name(model: PublicModel) -> str:
    """Return the name of the model's own deployment: `slug_of`, numbered where another model's has it already."""
    slug = slug_of(model.name)
    taken = set(Deployment.objects.filter(name__startswith=slug).exclude(model=model).values_list("name", flat=True))
    return next(name for n in count(1) if (name := slug if n == 1 else f"{slug}-{n}") not in taken)


def slug_of(name: str) -> str:
    """Return `name` as a deployment's name: letters, digits, dashes."""
    return "-".join(part for part in "".join(c if c.isalnum() else " " for c in name.lower()).split())[:80]
