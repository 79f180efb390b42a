"""The catalogue as one immutable snapshot: read in four queries, then used in memory until the next epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from routing.models import Deployment, PublicModel, RouteRule, RouteTarget


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A public model: `kinds` it serves, its `context_length` in tokens, the rate card that prices it."""

    name: str
    kinds: frozenset[str]
    context_length: int
    rate_card: str
    description: str
    created: int  # Unix seconds


@dataclass(frozen=True, slots=True)
class DeploymentEntry:
    """One active deployment, with the fields of `routing.models.Deployment`; `model` is the public model's name."""

    id: UUID
    name: str
    model: str
    backend: str
    node: str
    source: str
    options: Mapping[str, Any]
    credential: str = field(default="", repr=False)  # sealed


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """An active rule with its `targets` as (model name, weight). Empty conditions and None match every request."""

    name: str
    plan: str
    task: str
    min_prompt_tokens: int | None
    max_prompt_tokens: int | None
    targets: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All active models by name, deployments by model, and rules in the order in which they are tried."""

    models: Mapping[str, ModelEntry]
    deployments: Mapping[str, tuple[DeploymentEntry, ...]]
    rules: tuple[RuleEntry, ...]

    def all_deployments(self) -> tuple[DeploymentEntry, ...]:
        """Every active deployment of every active model."""
        return tuple(entry for entries in self.deployments.values() for entry in entries)


def load() -> Catalogue:
    """Return the active part of the catalogue as the database has it now."""
    models = {
        row.name: ModelEntry(
            name=row.name,
            kinds=frozenset(row.kinds),
            context_length=row.context_length,
            rate_card=row.rate_card,
            description=row.description,
            created=int(row.created_at.timestamp()),
        )
        for row in PublicModel.objects.filter(is_active=True)
    }
    deployments: dict[str, list[DeploymentEntry]] = {name: [] for name in models}
    for row in Deployment.objects.filter(is_active=True, model__is_active=True).select_related("model"):
        deployments[row.model.name].append(
            DeploymentEntry(
                id=row.id,
                name=row.name,
                model=row.model.name,
                backend=row.backend,
                node=row.node,
                source=row.source,
                options=row.options,
                credential=row.credential,
            )
        )
    targets: dict[UUID, list[tuple[str, int]]] = {}
    for target in RouteTarget.objects.filter(model__is_active=True).select_related("model").order_by("model__name"):
        targets.setdefault(target.rule_id, []).append((target.model.name, target.weight))
    rules = tuple(
        RuleEntry(
            name=row.name,
            plan=row.plan,
            task=row.task,
            min_prompt_tokens=row.min_prompt_tokens,
            max_prompt_tokens=row.max_prompt_tokens,
            targets=tuple(targets.get(row.id, ())),
        )
        for row in RouteRule.objects.filter(is_active=True)
    )
    return Catalogue(models, {name: tuple(rows) for name, rows in deployments.items()}, rules)
