"""The choice of a replica for a request: a pure function over the catalogue in memory, with its reasons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar
from uuid import UUID

from routing.catalogue import Catalogue, DeploymentEntry, ReplicaEntry, RuleEntry
from routing.errors import RoutingError
from routing.tasks import detect_task, is_automatic
from routing.types import Candidate, Route, RouteQuery

T = TypeVar("T")

CHARACTERS_PER_TOKEN = 4  # an estimate: routing comes before tokenising

WhyUnready = Callable[[UUID], str]
"""From a replica to why it can't take work now; empty when it can."""

Load = Callable[[UUID], int]
"""From a replica to how many requests it has."""

Place = tuple[DeploymentEntry, ReplicaEntry]

Served = Callable[[str], int | None]
"""From a model to the context in which it is served now, None where that isn't known."""


def route(
    query: RouteQuery,
    catalogue: Catalogue,
    why_unready: WhyUnready,
    *,
    load: Load = lambda _: 0,
    served: Served = lambda _: None,
    draw: Callable[[], float] = random.random,
) -> Route:
    """Return the replica for `query`, with the reason and everything that was passed over.

    `draw` returns a number in [0, 1), for the choices by weight and between equally busy replicas. Raise
    `RoutingError` when no replica can serve the query.
    """
    return _Decision(query, catalogue, why_unready, load=load, served=served, draw=draw).decide()


class _Decision:
    """One decision; `candidates` collects what was considered and not chosen."""

    def __init__(
        self,
        query: RouteQuery,
        catalogue: Catalogue,
        why_unready: WhyUnready,
        *,
        load: Load,
        served: Served,
        draw: Callable[[], float],
    ) -> None:
        self.query = query
        self.catalogue = catalogue
        self.why_unready = why_unready
        self.load = load
        self.served = served
        self.draw = draw
        self.task, self.task_source = detect_task(query)
        self.tokens = -(-query.prompt_characters // CHARACTERS_PER_TOKEN)
        self.candidates: list[Candidate] = []

    def decide(self) -> Route:
        if is_automatic(self.query.model):
            return self._by_rules()
        return self._by_name()

    def _by_name(self) -> Route:
        name = self.query.model
        model = self.catalogue.models.get(name)
        if model is None:
            raise RoutingError("model_not_found", f"The model {name!r} does not exist.", model=name)
        if self.query.kind not in model.kinds:
            serves = " and ".join(sorted(model.kinds))
            message = f"The model {name!r} serves {serves}, not {self.query.kind}."
            raise RoutingError("model_wrong_kind", message, model=name)
        if not self._allowed(name):
            message = f"Your plan ({self.query.plan}) doesn't include the model {name!r}."
            raise RoutingError("model_not_allowed", message, model=name)
        place = self._place_of(name)
        if place is None:
            raise self._nothing_ready(f"No deployment of {name!r} is ready.")
        return self._route(place, "", f"You asked for {name}.")

    def _by_rules(self) -> Route:
        for rule in self.catalogue.rules:
            if not self._matches(rule):
                continue
            picked = self._pick(rule)
            if picked is not None:
                return self._route(picked, rule.name, self._reason(rule))
        if any(candidate.deployment for candidate in self.candidates):
            raise self._nothing_ready("No deployment that the routing rules name is ready.")
        message = f"No routing rule gives a model for task {self.task!r} on plan {self.query.plan!r}."
        raise RoutingError("no_route", message, model=self.query.model)

    def _matches(self, rule: RuleEntry) -> bool:
        if rule.plan and rule.plan != self.query.plan:
            return False
        if rule.task and rule.task != self.task:
            return False
        if rule.min_prompt_tokens is not None and self.tokens < rule.min_prompt_tokens:
            return False
        return rule.max_prompt_tokens is None or self.tokens <= rule.max_prompt_tokens

    def _pick(self, rule: RuleEntry) -> Place | None:
        """Return a ready replica of one of the rule's targets, drawn by weight; None when no target can serve."""
        ready: list[tuple[Place, int]] = []
        for name, weight in rule.targets:
            if reason := self._unfit_reason(name):
                self.candidates.append(Candidate(name, "", reason))
                continue
            place = self._place_of(name)
            if place is not None:
                ready.append((place, weight))
        if not ready:
            return None
        chosen = self._drawn(ready)
        self.candidates.extend(
            _candidate(other, "the draw by weight chose another target") for other, _ in ready if other is not chosen
        )
        return chosen

    def _drawn(self, weighted: Sequence[tuple[T, int]]) -> T:
        """Return one of several, drawn in proportion to their weights."""
        if len(weighted) == 1:
            return weighted[0][0]
        point = self.draw() * sum(weight for _, weight in weighted)
        for one, weight in weighted:
            if point < weight:
                return one
            point -= weight
        return weighted[-1][0]

    def _unfit_reason(self, name: str) -> str:
        """Return why the model can't serve the query, whatever its deployments; empty when it can."""
        model = self.catalogue.models[name]
        if self.query.kind not in model.kinds:
            return f"doesn't serve {self.query.kind}"
        if not self._allowed(name):
            return f"not in plan {self.query.plan}"
        if self.tokens > (context := self._context_of(name)):
            return f"prompt of about {self.tokens} tokens is longer than its context of {context}"
        return ""

    def _context_of(self, name: str) -> int:
        """Return the catalogue's context, or less where memory or the proof at load left less."""
        context = self.catalogue.models[name].context_length
        served = self.served(name)
        return context if served is None else min(context, served)

    def _allowed(self, name: str) -> bool:
        return not self.query.allowed_models or name in self.query.allowed_models

    def _place_of(self, name: str) -> Place | None:
        """Return the least busy ready replica of the model's deployments, noting why the others were passed over.

        Deployments of one weight are a pool; between pools of several weights the request is drawn.
        """
        pools: dict[int, list[Place]] = {}
        for deployment in self.catalogue.deployments.get(name, ()):
            if not deployment.replicas:
                self.candidates.append(Candidate(name, deployment.name, "it has no replica on an active node"))
            for replica in deployment.replicas:
                place = (deployment, replica)
                if reason := self.why_unready(replica.id):
                    self.candidates.append(_candidate(place, reason))
                else:
                    pools.setdefault(deployment.weight, []).append(place)
        if not pools:
            return None
        pool = self._drawn([(pool, weight * len({d.id for d, _ in pool})) for weight, pool in pools.items()])
        for other in pools.values():
            if other is not pool:
                self.candidates.extend(_candidate(place, "the draw by weight chose another") for place in other)
        chosen = self._least_busy(pool)
        self.candidates.extend(_candidate(place, "busier") for place in pool if place is not chosen)
        return chosen

    def _least_busy(self, pool: Sequence[Place]) -> Place:
        """Return the place with the least load for its weight; of several one drawn by weight."""
        loads = [Fraction(self.load(replica.id), replica.weight) for _, replica in pool]
        least = min(loads)
        return self._drawn([(place, place[1].weight) for place, load in zip(pool, loads, strict=True) if load == least])

    def _reason(self, rule: RuleEntry) -> str:
        source = _SOURCES[self.task_source]
        return f"Rule “{rule.name}” matched: task {self.task} ({source}), plan {self.query.plan}."

    def _route(self, place: Place, rule: str, reason: str) -> Route:
        deployment, replica = place
        model = self.catalogue.models[deployment.model]
        return Route(
            model=model.name,
            deployment=deployment.id,
            deployment_name=deployment.name,
            replica=replica.id,
            node=replica.place,
            rate_card=model.rate_card,
            context_length=self._context_of(model.name),
            task=self.task,
            task_source=self.task_source,
            rule=rule,
            reason=reason,
            candidates=(*dict.fromkeys(self.candidates), _candidate(place)),
        )

    def _nothing_ready(self, message: str) -> RoutingError:
        passed = (candidate for candidate in dict.fromkeys(self.candidates) if candidate.deployment)
        reasons = "; ".join(f"{' on '.join(filter(None, (c.deployment, c.node)))}: {c.rejected}" for c in passed)
        sentence = f"{message} {reasons}." if reasons else message
        return RoutingError("no_ready_deployment", sentence, model=self.query.model)


def _candidate(place: Place, rejected: str = "") -> Candidate:
    deployment, replica = place
    return Candidate(deployment.model, deployment.name, rejected, replica.place)


_SOURCES = {
    "field": "from the request's task field",
    "endpoint": "from the endpoint",
    "alias": "from the model alias",
    "plan": "the plan's default",
}
