"""The catalogue as one immutable snapshot: read in six queries, then used in memory until the next epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from routing.hook import CLASSIFY, EXTRACT, OwnTerms
from routing.models import Adapter, Deployment, ModelAlias, PublicModel, Replica, RouteRule, RouteTarget

ADAPTABLE = (Deployment.Backend.WORKER, Deployment.Backend.FAKE)  # whose engines may take adapters
IMAGES = ("none", "data", "urls")  # each takes what those before it take


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A public model: `kinds` it serves, its `context_length` in tokens, the rate card that prices it now."""

    name: str
    kinds: frozenset[str]
    context_length: int
    rate_card: str
    description: str
    created: int  # Unix seconds
    tenant: UUID | None = None  # the only one that sees it
    project: UUID | None = None  # of that tenant the only one that sees it; None: all do
    base: str = ""  # the model that it is an adapter of
    number: int = 0  # of a tenant's own: 1 for the oldest
    default_max_tokens: int | None = None  # of an answer whose request doesn't say it

    @property
    def answers_labels(self) -> bool:
        """Whether it answers chats by classifying them."""
        return "classification" in self.kinds and "chat" not in self.kinds

    def serves(self, kind: str) -> bool:
        """Whether it takes requests of that kind."""
        return kind in self.kinds or (kind == "chat" and self.answers_labels)

    def own_obstacle(self, own: OwnTerms) -> str:
        """Return why a plan doesn't serve it to the tenant whose own it is; "" where it does, and for any other."""
        return "" if self.tenant is None else own.obstacle(self.number, self.base)

    def is_hidden_from(self, own: OwnTerms) -> bool:
        """Whether it is another tenant's or project's own."""
        return self.tenant is not None and not own.sees(self.tenant, self.project)


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """An active node: `address` and `public_key` are empty for the worker on this machine."""

    name: str
    address: str = ""
    public_key: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaEntry:
    """A deployment on `node`; None where its backend needs no node: then its id is the deployment's."""

    id: UUID
    node: NodeEntry | None = None
    weight: int = 1

    @property
    def place(self) -> str:
        """The node's name, or nothing."""
        return self.node.name if self.node is not None else ""


@dataclass(frozen=True, slots=True)
class DeploymentEntry:
    """One active deployment, with the fields of `routing.models.Deployment`; `model` is the public model's name.

    `replicas` are those on active nodes. For a model that is an adapter it is a deployment of its base, with the
    `adapter`'s id.
    """

    id: UUID
    name: str
    model: str
    backend: str
    source: str
    options: Mapping[str, Any]
    credential: str = field(default="", repr=False)  # sealed
    weight: int = 1
    replicas: tuple[ReplicaEntry, ...] = ()
    adapter: str = ""

    def sees(self, images: str) -> bool:
        """Whether it takes a request with such `images` (`RouteQuery`), by the option of that name."""
        return IMAGES.index(images) <= IMAGES.index(self.options.get("images", IMAGES[0]))


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rule's ceilings: the most that its models may cost, and take until the first token; None is no ceiling.

    `price` is in µcr per million output tokens, `request_price` in µcr for the request, `ttft_ms` what the deployment's
    latest requests took at `ttft_percentile`. `is_strict` refuses a request for which nothing holds it; else it gets
    the nearest.
    """

    price: int | None = None
    request_price: int | None = None
    ttft_ms: int | None = None
    ttft_percentile: int = 50
    is_strict: bool = True


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """An active rule with its `targets` as (model name, weight). Empty conditions and None match every request.

    `fallbacks` are the targets for what none of the others can serve. A request without a task whose text comes as near
    as `least_similarity` to one of the `examples` is taken to be for the rule's task.
    """

    name: str
    plan: str
    task: str
    min_prompt_tokens: int | None
    max_prompt_tokens: int | None
    targets: tuple[tuple[str, int], ...]
    fallbacks: tuple[tuple[str, int], ...] = ()
    structure: str = ""
    examples: tuple[str, ...] = ()
    least_similarity: float = 0.0
    ceiling: Ceiling | None = None

    @property
    def names(self) -> frozenset[str]:
        """The models that it may give."""
        return frozenset(name for name, _ in (*self.targets, *self.fallbacks))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All active models by name, deployments by model, and rules in the order in which they are tried.

    `aliases` are other names for models and ``auto``. `specialists` are the classifiers and adapters that rules give
    for labels or fields and for nothing else.
    """

    models: Mapping[str, ModelEntry]
    deployments: Mapping[str, tuple[DeploymentEntry, ...]]
    rules: tuple[RuleEntry, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    specialists: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        tasks: dict[str, set[str]] = {}
        for rule in self.rules:
            for name in rule.names:
                tasks.setdefault(name, set()).add(rule.task)
        apt = {model.name for model in self.models.values() if model.answers_labels or model.base}
        special = frozenset(name for name in apt & tasks.keys() if tasks[name] <= {CLASSIFY, EXTRACT})
        object.__setattr__(self, "specialists", special)

    def named(self, name: str) -> str:
        """Return the name of the model that a client asks for by `name`, which may be an alias."""
        return name if name in self.models else self.aliases.get(name, name)

    def all_deployments(self) -> tuple[DeploymentEntry, ...]:
        """Every active deployment of every active model, once."""
        return tuple(entry for entries in self.deployments.values() for entry in entries if not entry.adapter)

    def is_known(self, model: str, own: OwnTerms) -> bool:
        """Whether a request on these terms may know that there is a model of this name."""
        entry = self.models.get(model)
        return entry is not None and not entry.is_hidden_from(own)

    def rules_for(self, own: OwnTerms) -> tuple[RuleEntry, ...]:
        """Return the rules as a request on these terms may know them: without own models of others and those that its
        plan doesn't serve, and none that leads only to such.
        """
        return tuple(seen for rule in self.rules if (seen := self._seen(rule, own)) is not None)

    def _seen(self, rule: RuleEntry, own: OwnTerms) -> RuleEntry | None:
        named = {name: self.models[name] for name, _ in (*rule.targets, *rule.fallbacks)}
        hidden = {name for name, one in named.items() if one.is_hidden_from(own) or one.own_obstacle(own)}
        if not hidden:
            return rule
        targets, fallbacks = (
            tuple(target for target in targets if target[0] not in hidden) for targets in (rule.targets, rule.fallbacks)
        )
        return replace(rule, targets=targets, fallbacks=fallbacks) if targets or fallbacks else None

    def engine_of(self, model: str) -> str:
        """Return the model whose engines serve `model`: its base where it is an adapter, else itself."""
        entry = self.models.get(model)
        return model if entry is None else entry.base or model

    def replicas_of(self, model: str) -> tuple[ReplicaEntry, ...]:
        """Every active replica of the active deployments of `model`."""
        return tuple(replica for entry in self.deployments.get(model, ()) for replica in entry.replicas)


def load() -> Catalogue:
    """Return the active part of the catalogue as the database has it now.

    A model that is added while this reads is left out with all that belongs to it: its change raises the epoch, so the
    catalogue is read again.
    """
    models, adapters = _models()
    replicas: dict[UUID, list[ReplicaEntry]] = {}
    for replica in Replica.objects.filter(node__is_active=True).select_related("node"):
        node = NodeEntry(replica.node.name, replica.node.address, replica.node.public_key)
        replicas.setdefault(replica.deployment_id, []).append(ReplicaEntry(replica.id, node, replica.weight))
    deployments: dict[str, list[DeploymentEntry]] = {name: [] for name in models}
    for row in Deployment.objects.filter(is_active=True, model__is_active=True).select_related("model"):
        if row.model.name not in models:
            continue
        has_nodes = row.backend == Deployment.Backend.WORKER
        deployments[row.model.name].append(
            DeploymentEntry(
                id=row.id,
                name=row.name,
                model=row.model.name,
                backend=row.backend,
                source=row.source,
                options=row.options,
                credential=row.credential,
                weight=row.weight,
                replicas=tuple(replicas.get(row.id, ())) if has_nodes else (ReplicaEntry(row.id),),
            )
        )
    for name, adapter in adapters.items():
        served = [entry for entry in deployments.get(adapter.base.name, ()) if entry.backend in ADAPTABLE]
        deployments[name] = [replace(entry, model=name, adapter=str(adapter.id)) for entry in served]
    targets: dict[tuple[UUID, bool], list[tuple[str, int]]] = {}
    for target in RouteTarget.objects.filter(model__is_active=True).select_related("model").order_by("model__name"):
        if target.model.name in models:
            targets.setdefault((target.rule_id, target.is_fallback), []).append((target.model.name, target.weight))
    rules = tuple(
        RuleEntry(
            name=row.name,
            plan=row.plan,
            task=row.task,
            min_prompt_tokens=row.min_prompt_tokens,
            max_prompt_tokens=row.max_prompt_tokens,
            targets=tuple(targets.get((row.id, False), ())),
            fallbacks=tuple(targets.get((row.id, True), ())),
            structure=row.structure,
            examples=tuple(row.examples),
            least_similarity=row.least_similarity / 100,
            ceiling=ceiling_of(row),
        )
        for row in RouteRule.objects.filter(is_active=True)
    )
    aliases = dict(ModelAlias.objects.values_list("name", "target"))
    return Catalogue(models, {name: tuple(rows) for name, rows in deployments.items()}, rules, aliases)


def models_in_use() -> QuerySet[PublicModel]:
    """Return the active models, none of a project that is archived."""
    return PublicModel.objects.filter(is_active=True).exclude(project__is_active=False)


def _models() -> tuple[dict[str, ModelEntry], dict[str, Adapter]]:
    """Return the active models by name, and those that are adapters of a model that is active."""
    models: dict[str, ModelEntry] = {}
    adapters: dict[str, Adapter] = {}
    active = list(models_in_use().select_related("adapter__base"))
    numbers = _numbers(active)
    for row in active:
        adapter: Adapter | None = getattr(row, "adapter", None)
        if adapter is not None and not adapter.base.is_active:
            continue
        if adapter is not None:
            adapters[row.name] = adapter
        models[row.name] = ModelEntry(
            name=row.name,
            kinds=frozenset(row.kinds),
            context_length=row.context_length,
            rate_card=row.rate_card or ("" if adapter is None else adapter.base.rate_card),
            description=row.description,
            created=int(row.created_at.timestamp()),
            tenant=row.tenant_id,
            project=row.project_id,
            base="" if adapter is None else adapter.base.name,
            number=numbers.get(row.pk, 0),
            default_max_tokens=row.default_max_tokens,
        )
    return models, adapters


def _numbers(active: Iterable[PublicModel]) -> dict[UUID, int]:
    """Return the numbers of tenants' own models, each tenant's by age."""
    own: dict[UUID, list[Adapter]] = {}
    for row in active:
        if row.tenant_id is not None and hasattr(row, "adapter"):
            own.setdefault(row.tenant_id, []).append(row.adapter)
    return {adapter.model_id: number for adapters in own.values() for number, adapter in enumerate(by_age(adapters), 1)}


def by_age(adapters: Iterable[Adapter]) -> list[Adapter]:
    """Return a tenant's adapters in the order in which its plan serves them, the oldest first."""
    return sorted(adapters, key=lambda adapter: (adapter.created_at, adapter.id))


def ceiling_of(row: RouteRule) -> Ceiling | None:
    """Return the rule's ceiling, None where it has none."""
    if row.max_price is None and row.max_request_price is None and row.max_ttft_ms is None:
        return None
    is_strict = row.beyond_ceiling == RouteRule.BeyondCeiling.REFUSE
    return Ceiling(row.max_price, row.max_request_price, row.max_ttft_ms, row.ttft_percentile, is_strict)
