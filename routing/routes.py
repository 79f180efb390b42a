"""The choice of a replica for a request: a pure function over the catalogue in memory, with its reasons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from routing.catalogue import Catalogue, DeploymentEntry, ReplicaEntry, RuleEntry
from routing.choice import Draw, Option, choose, drawn
from routing.errors import RoutingError
from routing.prefix import Digest
from routing.tasks import detect_task, is_automatic
from routing.types import Candidate, Route, RouteQuery

CHARACTERS_PER_TOKEN = 4  # an estimate: routing comes before tokenising


class Replicas(Protocol):
    """What is known of the replicas now, by their ids."""

    def usable(self, replica: UUID) -> str:
        """Return why it can't take work now; empty when it can."""
        ...

    def load(self, replica: UUID) -> int:
        """Return how many tokens it has to compute, as far as that is known."""
        ...

    def context(self, replica: UUID) -> int | None:
        """Return the context in which it serves, None where that isn't known."""
        ...

    def matched(self, replica: UUID, prefix: Sequence[Digest]) -> int:
        """Return how many tokens of a prompt with this chain of digests it has probably cached."""
        ...


def route(
    query: RouteQuery,
    catalogue: Catalogue,
    replicas: Replicas,
    *,
    prefix: Callable[[str], Sequence[Digest]] = lambda _: (),
    draw: Draw = random.random,
) -> Route:
    """Return the replica for `query`, with the reason and everything that was passed over.

    `prefix` returns the chain of digests of the prompt for a model (`routing.prefix.chain`); it is asked only where
    several replicas can serve. `draw` decides between weights and between equally busy replicas. Raise `RoutingError`
    when no replica can serve the query.
    """
    return _Decision(query, catalogue, replicas, prefix=prefix, draw=draw).decide()


class _Decision:
    """One decision; `candidates` collects what was considered and not chosen."""

    def __init__(
        self,
        query: RouteQuery,
        catalogue: Catalogue,
        replicas: Replicas,
        *,
        prefix: Callable[[str], Sequence[Digest]],
        draw: Draw,
    ) -> None:
        self.query = query
        self.catalogue = catalogue
        self.replicas = replicas
        self.prefix = prefix
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
        if blind := self._blind_reason(name):
            raise RoutingError("images_not_supported", f"The model {name!r} {blind}.", model=name)
        option = self._replica_of(name)
        if option is None:
            raise self._nothing_ready(f"No deployment of {name!r} is ready.")
        return self._route(option, "", f"You asked for {name}.")

    def _by_rules(self) -> Route:
        for rule in self.catalogue.rules:
            if not self._matches(rule):
                continue
            for targets, note in ((rule.targets, ""), (rule.fallbacks, " None of its targets can serve: a fallback.")):
                picked = self._pick(targets)
                if picked is not None:
                    return self._route(picked, rule.name, self._reason(rule) + note)
        if any(candidate.deployment for candidate in self.candidates):
            raise self._nothing_ready("No deployment that the routing rules name is ready.")
        blind = [candidate for candidate in self.candidates if candidate.rejected in _BLIND.values()]
        if blind:
            told = "; ".join(f"{candidate.model} {candidate.rejected}" for candidate in dict.fromkeys(blind))
            message = f"No model that may serve {self.query.model!r} sees these images: {told}."
            raise RoutingError("images_not_supported", message, model=self.query.model)
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

    def _pick(self, targets: Sequence[tuple[str, int]]) -> Option | None:
        """Return a replica of one of the targets, drawn by weight; None when no target can serve."""
        ready: list[tuple[Option, int]] = []
        for name, weight in targets:
            if reason := self._unfit_reason(name):
                self.candidates.append(Candidate(name, "", reason))
                continue
            option = self._replica_of(name)
            if option is not None:
                ready.append((option, weight))
        if not ready:
            return None
        chosen = drawn(ready, self.draw)
        self.candidates.extend(
            _candidate(other, "the draw by weight chose another target") for other, _ in ready if other is not chosen
        )
        return chosen

    def _unfit_reason(self, name: str) -> str:
        """Return why the model can't serve the query, whatever its deployments; empty when it can."""
        model = self.catalogue.models[name]
        if self.query.kind not in model.kinds:
            return f"doesn't serve {self.query.kind}"
        if not self._allowed(name):
            return f"not in plan {self.query.plan}"
        if blind := self._blind_reason(name):
            return blind
        if self.tokens > (context := self._context_of(name)):
            return f"prompt of about {self.tokens} tokens is longer than its context of {context}"
        return ""

    def _blind_reason(self, name: str) -> str:
        """Return why no deployment of the model sees the query's images; empty when one does or there are none."""
        images, deployments = self.query.images, self.catalogue.deployments.get(name, ())
        if images == "none" or not deployments or any(deployment.sees(images) for deployment in deployments):
            return ""
        return _BLIND["urls" if any(deployment.sees("data") for deployment in deployments) else "data"]

    def _context_of(self, name: str) -> int:
        """Return the catalogue's context, or less where memory or the proof at load left less everywhere."""
        context, most = self.catalogue.models[name].context_length, 0
        for deployment in self.catalogue.deployments.get(name, ()):
            for replica in deployment.replicas:
                most = max(most, self.replicas.context(replica.id) or 0)
        return min(context, most) if most else context

    def _allowed(self, name: str) -> bool:
        return not self.query.allowed_models or name in self.query.allowed_models

    def _replica_of(self, name: str) -> Option | None:
        """Return the replica of the model's that gets the request, noting why the others were passed over."""
        ready: list[tuple[DeploymentEntry, ReplicaEntry]] = []
        for deployment in self.catalogue.deployments.get(name, ()):
            if not deployment.sees(self.query.images):
                self.candidates.append(Candidate(name, deployment.name, _BLIND[self.query.images]))
                continue
            if not deployment.replicas:
                self.candidates.append(Candidate(name, deployment.name, "it has no replica on an active node"))
            for replica in deployment.replicas:
                if reason := self.replicas.usable(replica.id):
                    self.candidates.append(Candidate(name, deployment.name, reason, replica.place))
                else:
                    ready.append((deployment, replica))
        ready = self._roomy(ready)
        if not ready:
            return None
        prefix = self.prefix(name) if len(ready) > 1 else ()
        options = [
            Option(
                deployment,
                replica,
                self.replicas.load(replica.id),
                self.replicas.matched(replica.id, prefix) if prefix else 0,
            )
            for deployment, replica in ready
        ]
        choice = choose(options, self.draw)
        self.candidates.extend(_candidate(option, reason) for option, reason in choice.passed)
        return choice.option

    def _roomy(self, ready: list[tuple[DeploymentEntry, ReplicaEntry]]) -> list[tuple[DeploymentEntry, ReplicaEntry]]:
        """Return those whose context the prompt probably fits into; all where it fits nowhere: the engine says so."""
        if len(ready) < 2:
            return ready
        contexts = {replica.id: self.replicas.context(replica.id) for _, replica in ready}
        roomy = [place for place in ready if (context := contexts[place[1].id]) is None or self.tokens <= context]
        if not roomy:
            return ready
        for deployment, replica in ready:
            if (deployment, replica) not in roomy:
                reason = f"prompt of about {self.tokens} tokens is longer than its context of {contexts[replica.id]}"
                self.candidates.append(Candidate(deployment.model, deployment.name, reason, replica.place))
        return roomy

    def _reason(self, rule: RuleEntry) -> str:
        source = _SOURCES[self.task_source]
        return f"Rule “{rule.name}” matched: task {self.task} ({source}), plan {self.query.plan}."

    def _route(self, option: Option, rule: str, reason: str) -> Route:
        model = self.catalogue.models[option.deployment.model]
        return Route(
            model=model.name,
            deployment=option.deployment.id,
            deployment_name=option.deployment.name,
            replica=option.replica.id,
            node=option.replica.place,
            rate_card=model.rate_card,
            context_length=self._context_of(model.name),
            task=self.task,
            task_source=self.task_source,
            rule=rule,
            reason=reason,
            matched=option.matched,
            candidates=(*dict.fromkeys(self.candidates), _candidate(option)),
        )

    def _nothing_ready(self, message: str) -> RoutingError:
        passed = (candidate for candidate in dict.fromkeys(self.candidates) if candidate.deployment)
        reasons = "; ".join(f"{' on '.join(filter(None, (c.deployment, c.node)))}: {c.rejected}" for c in passed)
        sentence = f"{message} {reasons}." if reasons else message
        return RoutingError("no_ready_deployment", sentence, model=self.query.model)


def _candidate(option: Option, rejected: str = "") -> Candidate:
    deployment, replica = option.deployment, option.replica
    return Candidate(deployment.model, deployment.name, rejected, replica.place, option.load, option.matched)


_BLIND = {"data": "takes no images", "urls": "takes images as data: URLs only, none by their addresses"}

_SOURCES = {
    "field": "from the request's task field",
    "endpoint": "from the endpoint",
    "alias": "from the model alias",
    "plan": "the plan's default",
}
