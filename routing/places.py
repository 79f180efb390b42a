"""The choice of a model and its replica for a request: conditions, ceilings, weights, and why each other place was
passed over. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from routing.catalogue import Catalogue, Ceiling, DeploymentEntry, ReplicaEntry, RuleEntry
from routing.prefix import Digest
from routing.types import Candidate, Price, RouteQuery

MICRO = 1_000_000


def over_price(ceiling: Ceiling | None, price: Price | None) -> tuple[str, float]:
    """Return why the price is too high and how many times the ceiling it is; "" and at most 1 where it is not.

    A model without a price in force can't be charged for: it holds no ceiling, not even one of time.
    """
    if ceiling is None:
        return "", 0.0
    if price is None:
        return "no price of it is in force", inf
    why, excess = "", 0.0
    for is_at, most, what in (
        (price.per_million, ceiling.price, "credits per million output tokens"),
        (price.request, ceiling.request_price, "credits for this request"),
    ):
        if most is None:
            continue
        share = is_at / most if most else float(is_at > 0) + is_at
        if is_at > most and share > excess:
            why = f"it costs {credits_of(is_at)} {what}, the ceiling is {credits_of(most)}"
        excess = max(excess, share)
    return why, excess


def over_time(ceiling: Ceiling | None, ttft_ms: int | None) -> tuple[str, float]:
    """Return why the time to first token is too long, likewise; one that isn't measured yet holds the ceiling."""
    if ceiling is None or ceiling.ttft_ms is None or ttft_ms is None:
        return "", 0.0
    excess = ttft_ms / ceiling.ttft_ms if ceiling.ttft_ms else 1.0 + ttft_ms
    if ttft_ms <= ceiling.ttft_ms:
        return "", excess
    times = f"p{ceiling.ttft_percentile} of its time to first token is {ttft_ms:,} ms"
    return f"{times}, the ceiling is {ceiling.ttft_ms:,} ms", excess


def told(ceiling: Ceiling) -> str:
    """Return the ceiling as words."""
    parts = []
    if ceiling.price is not None:
        parts.append(f"{credits_of(ceiling.price)} credits per million output tokens")
    if ceiling.request_price is not None:
        parts.append(f"{credits_of(ceiling.request_price)} credits for the request")
    if ceiling.ttft_ms is not None:
        parts.append(f"{ceiling.ttft_ms:,} ms to the first token (p{ceiling.ttft_percentile})")
    return "at most " + ", ".join(parts)


def credits_of(micro: int) -> str:
    """Return µcr as credits, without zeros at the end."""
    return f"{micro // MICRO}.{micro % MICRO:06}".rstrip("0").rstrip(".")


CHARACTERS_PER_TOKEN = 4  # an estimate: routing comes before tokenising


def tokens_of(query: RouteQuery) -> int:
    """Return about how many tokens the prompt has."""
    return -(-query.prompt_characters // CHARACTERS_PER_TOKEN)


def structure_of(query: RouteQuery) -> tuple[str, ...]:
    """Return what the request has of a rule's structures; "text" where it has none of the others."""
    has = {"tools": query.has_tools, "schema": query.has_schema, "images": query.images != "none"}
    return tuple(name for name, present in has.items() if present) or ("text",)


def meets(rule: RuleEntry, query: RouteQuery) -> bool:
    """Whether the rule's conditions hold, whatever the request's task is."""
    if rule.plan and rule.plan != query.plan:
        return False
    if rule.structure and rule.structure not in structure_of(query):
        return False
    tokens = tokens_of(query)
    if rule.min_prompt_tokens is not None and tokens < rule.min_prompt_tokens:
        return False
    return rule.max_prompt_tokens is None or tokens <= rule.max_prompt_tokens


def by_structure(query: RouteQuery, rules: Sequence[RuleEntry]) -> RuleEntry | None:
    """Return the first rule whose structure the request has, if it says a task: that is the request's."""
    return next((rule for rule in rules if rule.structure and rule.task and meets(rule, query)), None)


def by_instruction(query: RouteQuery, rules: Sequence[RuleEntry]) -> RuleEntry | None:
    """Return the first rule with examples for the task that the request's instruction asks for.

    Who gave a rule no examples doesn't want its task found by a request's text.
    """
    task = query.instruction.task if query.instruction is not None else ""
    return next((rule for rule in _by_text(query, rules) if rule.task == task), None)


def to_compare(query: RouteQuery, rules: Sequence[RuleEntry]) -> tuple[RuleEntry, ...]:
    """Return the rules with examples that may decide the task of a request that doesn't say it.

    Empty where the task makes no difference: no rule has examples, or one for any task comes before all that ask for
    one. Empty as well where its instruction has told.
    """
    return () if by_instruction(query, rules) is not None else _by_text(query, rules)


def _by_text(query: RouteQuery, rules: Sequence[RuleEntry]) -> tuple[RuleEntry, ...]:
    """Return the rules whose task the request's text may tell."""
    if query.kind != "chat" or by_structure(query, rules) is not None:
        return ()
    met = [rule for rule in rules if meets(rule, query)]
    first = next((rule for rule in met if rule.targets or rule.fallbacks), None)
    if first is None or not first.task:
        return ()
    return tuple(rule for rule in met if rule.examples and rule.task)


WINDOW = 2048  # tokens of load above the least within which a cached beginning decides

T = TypeVar("T")
Draw = Callable[[], float]
"""Returns a number in [0, 1)."""


class Option(msgspec.Struct, frozen=True):
    """A replica that can serve the request: its `load` in tokens, and how many of the prompt's it has cached."""

    deployment: DeploymentEntry
    replica: ReplicaEntry
    load: int = 0
    matched: int = 0

    @property
    def busyness(self) -> Fraction:
        """The load for the replica's weight."""
        return Fraction(self.load, self.replica.weight)


class Choice(msgspec.Struct, frozen=True):
    """The chosen option, and why each of the others was passed over."""

    option: Option
    passed: tuple[tuple[Option, str], ...] = ()


def drawn(weighted: Sequence[tuple[T, int]], draw: Draw) -> T:
    """Return one of several, drawn in proportion to their weights."""
    if len(weighted) == 1:
        return weighted[0][0]
    point = draw() * sum(weight for _, weight in weighted)
    for one, weight in weighted:
        if point < weight:
            return one
        point -= weight
    return weighted[-1][0]


def choose(options: Sequence[Option], draw: Draw) -> Choice:
    """Return the option that gets the request.

    Deployments of one weight are a pool; between pools the request is drawn by weight. Within the pool the option with
    the most cached tokens is taken, if its busyness is at most `WINDOW` above the least; where none has any, the less
    busy of two that are drawn by their replicas' weights.
    """
    if len(options) == 1:
        return Choice(options[0])
    pools: dict[int, list[Option]] = {}
    for option in options:
        pools.setdefault(option.deployment.weight, []).append(option)
    pool = drawn(
        [(pool, weight * len({option.deployment.id for option in pool})) for weight, pool in pools.items()], draw
    )
    passed = [
        (option, "the draw by weight chose another deployment")
        for other in pools.values()
        if other is not pool
        for option in other
    ]
    chosen, reasons = _within(pool, draw)
    passed += [(option, reasons.get(option.replica.id, "busier")) for option in pool if option is not chosen]
    return Choice(chosen, tuple(passed))


def _within(pool: Sequence[Option], draw: Draw) -> tuple[Option, dict[UUID, str]]:
    """Return the chosen option of a pool, and the special reasons against others."""
    if len(pool) == 1:
        return pool[0], {}
    least = min(option.busyness for option in pool)
    near = [option for option in pool if option.busyness <= least + WINDOW]
    reasons = {
        option.replica.id: f"too busy for its cached beginning of {option.matched} tokens"
        for option in pool
        if option.matched and option not in near
    }
    most = max(option.matched for option in near)
    if most:
        holders = [option for option in near if option.matched == most]
        busyness = min(option.busyness for option in holders)
        chosen = drawn([(one, one.replica.weight) for one in holders if one.busyness == busyness], draw)
        return chosen, reasons | {
            option.replica.id: f"has {option.matched} tokens of the prompt cached, the chosen one {most}"
            for option in near
            if option.matched < most
        }
    first = drawn([(option, option.replica.weight) for option in pool], draw)
    second = drawn([(option, option.replica.weight) for option in pool if option is not first], draw)
    chosen = min(first, second, key=lambda option: option.busyness)
    return chosen, reasons | {one.replica.id: "not drawn" for one in pool if one is not first and one is not second}


BLIND = {"data": "takes no images", "urls": "takes images as data: URLs only, none by their addresses"}


class Replicas(Protocol):
    """The states of the replicas, by their ids."""

    def usable(self, replica: UUID) -> str:
        """Return why it can't take work now; empty when it can."""
        ...

    def refuses(self, replica: UUID, adapter: str) -> str:
        """Return why it doesn't serve that adapter, however well it serves its base; empty where nothing says so."""
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

    def ttft_ms(self, deployment: UUID, percentile: int, adapter: str = "") -> int | None:
        """Return the time to first token of a deployment's latest requests with that adapter, or with its base alone;
        None where too few were measured.
        """
        ...


class Places:
    """The replicas of one decision; `candidates` collects what was considered and not chosen.

    `refused` has the models whose adapters every replica of theirs refuses, each with one's reason.
    """

    def __init__(
        self,
        query: RouteQuery,
        catalogue: Catalogue,
        replicas: Replicas,
        *,
        prefix: Callable[[str], Sequence[Digest]],
        draw: Draw,
    ) -> None:
        self.candidates: list[Candidate] = []
        self.refused: dict[str, str] = {}
        self._query = query
        self._catalogue = catalogue
        self._replicas = replicas
        self._prefix = prefix
        self._draw = draw
        self._tokens = tokens_of(query)

    def of(self, model: str, ceiling: Ceiling | None = None) -> Option | None:
        """Return the replica of the model's that gets the request, of deployments that hold the `ceiling` in time."""
        ready: list[tuple[DeploymentEntry, ReplicaEntry]] = []
        refusals: list[str] = []
        passed = len(self.candidates)
        for deployment in self._catalogue.deployments.get(model, ()):
            if not deployment.sees(self._query.images):
                self.candidates.append(Candidate(model, deployment.name, BLIND[self._query.images]))
                continue
            if slow := self._over_time(deployment, ceiling)[0]:
                self.candidates.append(Candidate(model, deployment.name, slow))
                continue
            if not deployment.replicas:
                self.candidates.append(Candidate(model, deployment.name, "it has no replica on an active node"))
            for replica in deployment.replicas:
                unusable = self._replicas.usable(replica.id)
                refusal = "" if unusable else self._refusal(deployment, replica)
                refusals += [refusal] if refusal else []
                if reason := unusable or refusal:
                    self.candidates.append(Candidate(model, deployment.name, reason, replica.place))
                else:
                    ready.append((deployment, replica))
        if refusals and len(refusals) == len(self.candidates) - passed and not ready:
            self.refused[model] = refusals[0]
        ready = self._roomy(ready)
        if not ready:
            return None
        prefix = self._prefix(model) if len(ready) > 1 else ()
        options = [
            Option(
                deployment,
                replica,
                self._replicas.load(replica.id),
                self._replicas.matched(replica.id, prefix) if prefix else 0,
            )
            for deployment, replica in ready
        ]
        choice = choose(options, self._draw)
        self.candidates.extend(candidate(option, reason) for option, reason in choice.passed)
        return choice.option

    def could_serve(self, model: str) -> bool:
        """Whether some replica of the model's could take the request, were there no ceiling."""
        return any(
            deployment.sees(self._query.images)
            and not (self._replicas.usable(replica.id) or self._refusal(deployment, replica))
            for deployment in self._catalogue.deployments.get(model, ())
            for replica in deployment.replicas
        )

    def excess_of(self, deployment: DeploymentEntry, ceiling: Ceiling) -> float:
        """Return how many times the ceiling of time to first token the deployment takes; 0 where that isn't known."""
        return self._over_time(deployment, ceiling)[1]

    def _refusal(self, deployment: DeploymentEntry, replica: ReplicaEntry) -> str:
        """Return why the replica doesn't serve the deployment's adapter, "" where it does or there is none."""
        return self._replicas.refuses(replica.id, deployment.adapter) if deployment.adapter else ""

    def _over_time(self, deployment: DeploymentEntry, ceiling: Ceiling | None) -> tuple[str, float]:
        if ceiling is None or ceiling.ttft_ms is None:
            return "", 0.0
        ttft_ms = self._replicas.ttft_ms(deployment.id, ceiling.ttft_percentile, deployment.adapter)
        return over_time(ceiling, ttft_ms)

    def context_of(self, model: str) -> int:
        """Return the catalogue's context, or less where memory or the proof at load left less everywhere."""
        context, most = self._catalogue.models[model].context_length, 0
        for deployment in self._catalogue.deployments.get(model, ()):
            for replica in deployment.replicas:
                most = max(most, self._replicas.context(replica.id) or 0)
        return min(context, most) if most else context

    def blind_reason(self, model: str) -> str:
        """Return why no deployment of the model sees the query's images; empty when one does or there are none."""
        images, deployments = self._query.images, self._catalogue.deployments.get(model, ())
        if images == "none" or not deployments or any(deployment.sees(images) for deployment in deployments):
            return ""
        return BLIND["urls" if any(deployment.sees("data") for deployment in deployments) else "data"]

    def _roomy(self, ready: list[tuple[DeploymentEntry, ReplicaEntry]]) -> list[tuple[DeploymentEntry, ReplicaEntry]]:
        """Return those whose context the prompt probably fits into; all where it fits nowhere: the engine says so."""
        if len(ready) < 2:
            return ready
        contexts = {replica.id: self._replicas.context(replica.id) for _, replica in ready}
        roomy = [place for place in ready if (context := contexts[place[1].id]) is None or self._tokens <= context]
        if not roomy:
            return ready
        for deployment, replica in ready:
            if (deployment, replica) not in roomy:
                reason = f"prompt of about {self._tokens} tokens is longer than its context of {contexts[replica.id]}"
                self.candidates.append(Candidate(deployment.model, deployment.name, reason, replica.place))
        return roomy


def candidate(option: Option, rejected: str = "") -> Candidate:
    """Return the option as it is told, with why it was `rejected`."""
    deployment, replica = option.deployment, option.replica
    return Candidate(deployment.model, deployment.name, rejected, replica.place, option.load, option.matched)
