"""The choice of a replica for a request: a pure function over the catalogue in memory, with its reasons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from routing.catalogue import Catalogue, ModelEntry, RuleEntry
from routing.conversations import Conversation
from routing.errors import RoutingError
from routing.hook import CLASSIFY
from routing.places import BLIND, Draw, Option, Places, Replicas, candidate, meets, tokens_of
from routing.prefix import Digest
from routing.targets import Beyond, Picked, Targets
from routing.tasks import CERTAIN, find_task, is_automatic
from routing.types import Price, Route, RouteQuery, Signal


def route(
    query: RouteQuery,
    catalogue: Catalogue,
    replicas: Replicas,
    *,
    prefix: Callable[[str], Sequence[Digest]] = lambda _: (),
    price: Callable[[str], Price | None] = lambda _: None,
    unfit: Callable[[ModelEntry, str], str] = lambda _, __: "",
    draw: Draw = random.random,
) -> Route:
    """Return the replica for `query`, with the reason and everything that was passed over.

    `prefix` returns the chain of digests of the prompt for a model (`routing.prefix.chain`); it is asked only where
    several replicas can serve. `price` returns what a model would cost, None where nobody knows; it is asked only under
    a ceiling and in conversations. `unfit` returns why a chat for ``auto`` is nothing for a classifier or specialist,
    "" where it is, by the task that the request says (empty where a rule's structure says it); it is asked only where
    one of these could answer. `draw` decides between weights and between equally busy
    replicas. Raise `RoutingError` when no replica can serve the query.
    """
    return _Decision(query, catalogue, replicas, prefix=prefix, price=price, unfit=unfit, draw=draw).decide()


class _Decision:
    """One decision."""

    def __init__(
        self,
        query: RouteQuery,
        catalogue: Catalogue,
        replicas: Replicas,
        *,
        prefix: Callable[[str], Sequence[Digest]],
        price: Callable[[str], Price | None],
        unfit: Callable[[ModelEntry, str], str],
        draw: Draw,
    ) -> None:
        self.query = query
        self.catalogue = catalogue
        self.unfit = unfit
        self.price = price
        self.draw = draw
        self.places = Places(query, catalogue, replicas, prefix=prefix, draw=draw)
        self.rules = catalogue.rules_for(query.own)
        self.found = find_task(query, self.rules)
        self.task, self.task_source = self.found.task, self.found.source
        self.signals = list(self.found.signals)
        self.tokens = tokens_of(query)

    def decide(self) -> Route:
        if is_automatic(self.query.model):
            return self._by_rules()
        return self._by_name()

    def _by_name(self) -> Route:
        name = self.query.model
        model = self.catalogue.models.get(name)
        if model is None or model.is_hidden_from(self.query.own):
            raise RoutingError("model_not_found", f"The model {name!r} does not exist.", model=name)
        if not model.serves(self.query.kind):
            serves = " and ".join(sorted(model.kinds))
            message = f"The model {name!r} serves {serves}, not {self.query.kind}."
            raise RoutingError("model_wrong_kind", message, model=name)
        if not self._allowed(name):
            message = f"Your plan ({self.query.plan}) doesn't include the model {name!r}."
            raise RoutingError("model_not_allowed", message, model=name)
        if obstacle := model.own_obstacle(self.query.own):
            raise RoutingError("adapter_not_served", obstacle, model=name)
        if blind := self.places.blind_reason(name):
            raise RoutingError("images_not_supported", f"The model {name!r} {blind}.", model=name)
        option = self.places.of(name)
        if why := self.places.refused.get(name):
            raise RoutingError("adapter_refused", f"The model {name!r}: {why}", model=name)
        if option is None:
            raise self._nothing_ready(f"No deployment of {name!r} is ready.")
        return self._route(option, None, f"You asked for {name}.")

    def _by_rules(self) -> Route:
        # Not kept: it refers back here, so both would stay, with the prompt, until the collector finds them.
        targets = Targets(self.places, self._meets, self._unfit_reason, self.price, self.draw)
        for rule in self.rules:
            if not self._matches(rule):
                continue
            picked = targets.pick(rule)
            if isinstance(picked, Beyond):
                raise self._beyond(rule, picked)
            if picked is not None:
                return self._kept_or(picked, rule, targets)
        if any(one.deployment for one in self.places.candidates):
            raise self._nothing_ready("No deployment that the routing rules name is ready.")
        blind = [one for one in self.places.candidates if one.rejected in BLIND.values()]
        if blind:
            told = "; ".join(f"{one.model} {one.rejected}" for one in dict.fromkeys(blind))
            message = f"No model that may serve {self.query.model!r} sees these images: {told}."
            raise RoutingError("images_not_supported", message, model=self.query.model)
        message = f"No routing rule gives a model for task {self.task!r} on plan {self.query.plan!r}."
        raise RoutingError("no_route", message, model=self.query.model)

    def _meets(self, rule: RuleEntry) -> bool:
        return meets(rule, self.query)

    def _matches(self, rule: RuleEntry) -> bool:
        return self._meets(rule) and rule.task in ("", self.task)

    def _kept_or(self, picked: Picked, rule: RuleEntry, targets: Targets) -> Route:
        """Return what the conversation has, or what `picked` says where it doesn't keep that."""
        if self.query.kept is None:
            return self._by(picked, rule)
        kept = self.query.kept.model
        knows = self.catalogue.is_known(kept, self.query.own)
        conversation = Conversation(kept, self.found, self.catalogue, self.rules, targets, knows=knows)
        turn = conversation.turn(picked, rule)
        self.signals += turn.signals
        if turn.option is None or turn.rule is None:
            return self._by(picked, rule, turn.goes_on_with)
        self.places.candidates.append(candidate(picked.option, f"the conversation keeps {kept}"))
        reason = f"The conversation began with {kept} and keeps it. {self._reason(rule)}"
        return self._route(turn.option, turn.rule, reason)

    # -- models -----------------------------------------------------------------------------------------------------

    def _unfit_reason(self, name: str) -> str:
        """Return why the model can't serve the query, whatever its deployments; empty when it can."""
        model = self.catalogue.models[name]
        if self.query.stays not in {"", name}:
            return f"the request stays with {self.query.stays}"
        if not model.serves(self.query.kind):
            return f"doesn't serve {self.query.kind}"
        if not self._allowed(name):
            return f"not in plan {self.query.plan}"
        if unfit := self._special_reason(model) or self.places.blind_reason(name):
            return unfit
        if self.tokens > (context := self.places.context_of(name)):
            return f"prompt of about {self.tokens} tokens is longer than its context of {context}"
        return ""

    def _special_reason(self, model: ModelEntry) -> str:
        """Return why the query is nothing for the model, if that is a specialist or answers with labels; else ""."""
        is_special = model.name in self.catalogue.specialists
        if is_special and self.task_source not in CERTAIN:
            return f"its task {self.task} is only guessed, and a specialist takes tasks that are written"
        if self.query.kind != "chat" or not (is_special or model.answers_labels):
            return ""
        if model.answers_labels and self.task != CLASSIFY:
            return f"answers with labels, for the task {CLASSIFY} alone"
        reason = self.unfit(model, "" if self.task_source == "structure" else self.task)
        return reason and f"{'answers with labels' if model.answers_labels else 'is a specialist'}: {reason}"

    def _allowed(self, name: str) -> bool:
        model = self.catalogue.models[name]
        if model.tenant is not None:
            is_for_key = not self.query.key_models or name in self.query.key_models
            return is_for_key and not model.is_hidden_from(self.query.own)
        return not self.query.allowed_models or name in self.query.allowed_models

    # -- answers ----------------------------------------------------------------------------------------------------

    def _by(self, picked: Picked, rule: RuleEntry, goes_on_with: str = "") -> Route:
        self.signals += [picked.signal] if picked.signal is not None else []
        return self._route(picked.option, rule, self._reason(rule) + picked.note, goes_on_with)

    def _reason(self, rule: RuleEntry) -> str:
        source = _SOURCES[self.task_source]
        return f"Rule “{rule.name}” matched: task {self.task} ({source}), plan {self.query.plan}."

    def _route(self, option: Option, rule: RuleEntry | None, reason: str, goes_on_with: str = "") -> Route:
        model = self.catalogue.models[option.deployment.model]
        return Route(
            model=model.name,
            deployment=option.deployment.id,
            deployment_name=option.deployment.name,
            replica=option.replica.id,
            node=option.replica.place,
            rate_card=model.rate_card,
            context_length=self.places.context_of(model.name),
            task=self.task,
            task_source=self.task_source,
            rule="" if rule is None else rule.name,
            reason=reason,
            adapter=option.deployment.adapter,
            matched=option.matched,
            candidates=(*dict.fromkeys(self.places.candidates), candidate(option)),
            signals=(*self.signals, *self._adapters()),
            is_specialist=model.name in self.catalogue.specialists,
            goes_on_with=goes_on_with or model.name,
            base="" if model.tenant is None else model.base,
        )

    def _adapters(self) -> tuple[Signal, ...]:
        refused = "; ".join(f"{model}: {why}" for model, why in self.places.refused.items())
        return (Signal("adapter", "passed", refused),) if refused else ()

    def _beyond(self, rule: RuleEntry, beyond: Beyond) -> RoutingError:
        reasons = "; ".join(f"{one.model}: {one.rejected}" for one in dict.fromkeys(self.places.candidates))
        message = f"Nothing holds the ceiling of rule “{rule.name}” ({beyond.ceiling}). {reasons}."
        return RoutingError("beyond_ceiling", message, model=self.query.model)

    def _nothing_ready(self, message: str) -> RoutingError:
        passed = (one for one in dict.fromkeys(self.places.candidates) if one.deployment)
        reasons = "; ".join(f"{' on '.join(filter(None, (c.deployment, c.node)))}: {c.rejected}" for c in passed)
        sentence = f"{message} {reasons}." if reasons else message
        return RoutingError("no_ready_deployment", sentence, model=self.query.model)


_SOURCES = {
    "field": "from the request's task field",
    "endpoint": "from the endpoint",
    "alias": "from the model alias",
    "structure": "from what the request has",
    "instruction": "from its instruction",
    "examples": "from the nearest example",
    "plan": "the plan's default",
}
