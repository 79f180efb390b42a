"""The replica of a request: chosen by routing from its text, entered, and chosen anew when it doesn't take it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec
import structlog

from billing import rating
from billing.rating import WHOLE_BP, CardPrices
from gateway.errors.faults import refusal_of_engine, refusal_of_key, refusal_of_route
from gateway.errors.refusal import Refusal
from gateway.generation.intent import Intent
from gateway.generation.labelling import Labelling, held_to, labelling_of, why_unlabelled, why_unsure
from gateway.runtime.catalogue import Snapshot
from gateway.runtime.conversations import keys_of
from gateway.runtime.engines import ADAPTERS_OWN, Engines, Flight
from gateway.runtime.examples import Asker, Examples
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime
from inference.engine import Engine
from inference.errors import (
    EngineError,
    InvalidRequestError,
    LimitedError,
    OverloadedError,
)
from inference.messages import Message
from inference.types import Feature, GenerationRequest, Guidance, GuidanceKind, Kind, Prepared, SamplingParams
from routing import hook
from routing.catalogue import Catalogue, DeploymentEntry, ModelEntry
from routing.decision import route as choose_route
from routing.errors import RoutingError
from routing.hook import CLASSIFY, Instruction
from routing.places import CHARACTERS_PER_TOKEN, to_compare, tokens_of
from routing.prefix import Digest, chain
from routing.tasks import CERTAIN, is_automatic, says_task
from routing.types import Kept, Price, Route, RouteQuery

USUAL_OUTPUT = 256  # tokens of an answer that the client doesn't bound


def estimate(card: CardPrices, multiplier_bp: int, prompt_tokens: int, max_tokens: int | None) -> Price:
    """Return the price of a prompt of about so many tokens, none of it cached, with an answer as long as it may be."""
    classes = {"input": prompt_tokens, "output": USUAL_OUTPUT if max_tokens is None else max_tokens}
    rate = card.rates_for(prompt_tokens)["output"]
    return Price(-(-rate * multiplier_bp // WHOLE_BP), rating.charge(classes, card, multiplier_bp))


T = TypeVar("T")

MOST_ATTEMPTS = 3  # of one request: replicas that are tried
MODEL, TASK = "x-sluice-model", "x-sluice-task"  # headers of answers

_PLAIN = (
    " !#$&'()*+,/:;<=>?@[]^`{|}"  # ASCII beside letters, digits and "_.-~", without the sign that stands for others
)

log = structlog.get_logger(__name__)


class Reach(IntEnum):
    """Bounds on moving a request: the hold pays its deployment's price, and a client may know its model's name."""

    DEPLOYMENT = 0
    MODEL = 1
    ANYWHERE = 2


class _Besides:
    """The engines as routing sees them for one request: without those that failed it, and without the adapters that
    failed it there.
    """

    def __init__(self, engines: Engines, failed: Mapping[UUID, str], unserved: Mapping[tuple[UUID, str], str]) -> None:
        self._failed, self._unserved = failed, unserved
        self._engines = engines
        self.load, self.context, self.matched = engines.load, engines.context, engines.matched
        self.ttft_ms = engines.ttft_ms

    def usable(self, replica: UUID) -> str:
        return self._failed.get(replica, "") or self._engines.usable(replica)

    def refuses(self, replica: UUID, adapter: str) -> str:
        return self._unserved.get((replica, adapter), "") or self._engines.refuses(replica, adapter)


class Placement:
    """The place of a request: its `route` and, while it runs there, its `flight`.

    `labelling` is what it asks of a classifier, where that answers a chat. `failed` has the replicas that didn't take
    or didn't keep it, `unserved` those whose adapter alone (by its id) didn't, each with the reason: the base and its
    other adapters may be served there.
    """

    def __init__(
        self, engines: Engines, snapshot: Snapshot, principal: Principal, intent: Intent, query: RouteQuery
    ) -> None:
        self.failed: dict[UUID, str] = {}
        self.unserved: dict[tuple[UUID, str], str] = {}
        self.attempts: list[dict[str, str]] = []  # the places that failed it, in order, as they are told
        self.flight: Flight | None = None
        self._engines = engines
        self._snapshot = snapshot
        self.principal = principal
        self.intent = intent
        self._query = query
        self._prefixes: dict[str, tuple[Digest, ...]] = {}
        known = query.instruction
        self._instructions: dict[str, Instruction | None] = {} if known is None else {known.task: known}
        self.labelling: Labelling | None = None
        self._unlabelled: str | None = None  # why a classifier wouldn't answer, once it was asked
        self._held_to: Guidance | None = None  # a specialist's, if its engine can
        self._guidance: Guidance | None = None  # with which it was prepared, though it didn't ask for any
        self.route = self._routed()

    def enter(self) -> Flight:
        """Count the request on the replica of its route; raise a 503 Refusal when it has just left the catalogue."""
        route, tokens = self.route, self.intent.characters // CHARACTERS_PER_TOKEN
        prefix = self._prefixes.get(route.model, ())
        self.flight = self._engines.enter(
            route.replica, tokens, self.principal.tenant, adapter=route.adapter, matched=route.matched, prefix=prefix
        )
        if self.flight is None:
            raise Refusal(503, "no_ready_deployment", f"{route.model} can't be served right now.")
        return self.flight

    def leave(self) -> None:
        """Take the request off its replica."""
        if self.flight is not None:
            self.flight.close()
            self.flight = None

    def note_failure(self, error: str, *, is_adapters: bool = False) -> None:
        """Leave the replica and route to it no more, or where the failure `is_adapters`, not with this adapter."""
        self.leave()
        if is_adapters and self.route.adapter:
            self.unserved[self.route.replica, self.route.adapter] = error
        else:
            self.failed[self.route.replica] = error
        self.attempts.append(self._told(error))

    def another(self, reach: Reach) -> bool:
        """Route to another replica and enter it: of the same deployment if one takes work, else of the same model, else
        where the rules lead, as far as `reach` allows. False when none is ready or enough have failed.
        """
        if len(self.attempts) >= MOST_ATTEMPTS:
            return False
        stays: dict[Reach, Callable[[DeploymentEntry], bool] | None] = {
            Reach.DEPLOYMENT: lambda deployment: deployment.id == self.route.deployment,
            Reach.MODEL: lambda deployment: deployment.id in self._serving(self.route.model),
            Reach.ANYWHERE: None,
        }
        for far in Reach:
            if far > reach:
                return False
            try:
                self.route = self._routed(stays[far])
                self.enter()
            except Refusal:
                continue
            return True
        return False

    def _serving(self, model: str) -> set[UUID]:
        return {deployment.id for deployment in self._snapshot.catalogue.deployments.get(model, ())}

    @property
    def card(self) -> CardPrices | None:
        """The prices of its route, as they were in force when the request came."""
        return self._snapshot.prices.get(self.route.rate_card)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that tell the route, in errors too."""
        return route_headers(self.route)

    def explain(self) -> dict[str, object]:
        """Return the decision as JSON-ready data; of a request that moved with its `attempts`, each with why it failed,
        the one that serves it last; of a batch's line with its `batch`.
        """
        told = self.route.explain()
        if self._guidance is not None:
            # How many labels, and not which: they are the client's words, and the decision is kept.
            told["held_to"] = len(self._guidance.choices) or self._guidance.kind.value
        if self.principal.batch is not None:
            told["batch"] = f"batch_{self.principal.batch.hex}"
        if self.attempts:
            serves = [] if self._has_failed else [self._told("")]
            told["attempts"] = self.attempts + serves
        return told

    @property
    def _has_failed(self) -> bool:
        """Whether it failed where its route leads."""
        route = self.route
        return route.replica in self.failed or (route.replica, route.adapter) in self.unserved

    def _told(self, failed: str) -> dict[str, str]:
        route = self.route
        return {"model": route.model, "deployment": route.deployment_name, "node": route.node, "failed": failed}

    async def prepare(self, request: GenerationRequest) -> tuple[Engine, Prepared]:
        """Return an engine and the request as it tokenised it; see `ask`."""
        return await self.ask(lambda engine: engine.prepare(self.adapted(request)))

    def adapted(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request as the model of its route takes it: with its adapter, or as a classification."""
        if self.labelling is not None:
            self._guidance = None
            return self.labelling.request(request)
        adapter, intent = self.route.adapter, self.intent
        if request.kind is not intent.kind:  # it was to be classified where it was before
            request = replace(
                request,
                kind=intent.kind,
                messages=intent.messages,
                tools=intent.tools,
                template_values=intent.template_values,
                inputs=intent.inputs,
                labels=intent.labels,
            )
        info = None if self.flight is None else self.flight.engine.info
        can_guide = info is not None and Feature.STRUCTURED_OUTPUTS in info.features
        self._guidance = self._held_to if can_guide else None
        sampling = self._bounded(intent.sampling)
        guidance = sampling.guidance or self._guidance
        if sampling.guidance != guidance:
            sampling = replace(sampling, guidance=guidance)
        if request.sampling != sampling:
            request = replace(request, sampling=sampling)
        return request if request.adapter == adapter else replace(request, adapter=adapter)

    def _bounded(self, sampling: SamplingParams) -> SamplingParams:
        """Return `sampling` with the model's own bound of an answer, where the request has none."""
        most = self._snapshot.catalogue.models[self.route.model].default_max_tokens
        if most is None or sampling.max_tokens is not None or self.intent.kind is not Kind.CHAT:
            return sampling
        return replace(sampling, max_tokens=max(most, sampling.min_tokens))

    async def ask(self, call: Callable[[Engine], Awaitable[T]]) -> tuple[Engine, T]:
        """Return an engine and what it answers to `call`; raise the Refusal for why none does.

        A replica that doesn't take it is left for another, of whichever deployment routing chooses.
        """
        while True:
            flight = self.flight or self.enter()
            try:
                return flight.engine, await call(flight.engine)
            except EngineError as engines:
                error = _as_adapter(engines, self.route.model)
                # What one worker can't serve of an adapter, for its bounds or its dtype, another may.
                if isinstance(error, LimitedError):  # which another's worker would spend no better
                    raise refusal_of_engine(error) from error
                if isinstance(error, InvalidRequestError) and error.code != "adapter_refused":
                    self._generate_instead(error)
                    continue
                is_adapters = error.code in ADAPTERS_OWN
                flight.ended(error)
                self.note_failure(error.message, is_adapters=is_adapters)
                if len(self.attempts) >= MOST_ATTEMPTS:
                    raise refusal_of_engine(error) from error
                try:
                    self.route = self._routed()
                except Refusal:
                    raise refusal_of_engine(error) from error
                log.info("rerouted", error=error.message, deployment=self.route.deployment_name, node=self.route.node)

    def _generate_instead(self, error: InvalidRequestError) -> None:
        """Route a chat for ``auto`` that a classifier refused to what isn't one; raise the Refusal of any other."""
        refusal = refusal_of_engine(error)
        if self.labelling is None:
            raise refusal from error
        refusal = self.labelling.refusal_of(refusal)
        if not is_automatic(self.intent.model):
            raise refusal from error
        self._unlabelled = refusal.message
        try:
            self.route = self._routed()
        except Refusal:
            raise refusal from error
        self.leave()

    def _routed(self, stays: Callable[[DeploymentEntry], bool] | None = None) -> Route:
        """Return where the request goes now, among deployments where it `stays` (None: all); raise the Refusal that
        says why nowhere.
        """
        principal, catalogue, query = self.principal, self._snapshot.catalogue, self._query
        failed = dict(self.failed)
        if stays is not None:
            # A model and its adapters are served by the same replicas: the deployment alone doesn't say which it was.
            query = msgspec.structs.replace(query, stays=self.route.model)
            for deployment in catalogue.all_deployments():
                if not stays(deployment):
                    failed |= {replica.id: "the request stays where it began" for replica in deployment.replicas}
        try:
            replicas = _Besides(self._engines, failed, self.unserved) if failed or self.unserved else self._engines
            chosen = choose_route(
                query,
                catalogue,
                replicas,
                prefix=self._prefix,
                price=self._price,
                unfit=self._why_unfit,
            )
        except RoutingError as error:
            if error.code == "model_not_allowed" and principal.key_models and error.model not in principal.key_models:
                raise refusal_of_key(error.model) from error
            raise refusal_of_route(
                error, self._snapshot.plans_of(error.model), image_at=self.intent.image_at
            ) from error
        is_labelled = self.intent.kind is Kind.CHAT and catalogue.models[chosen.model].answers_labels
        self.labelling = labelling_of(self.intent, self._instruction(CLASSIFY)) if is_labelled else None
        is_held = chosen.is_specialist and not is_labelled and self.intent.kind is Kind.CHAT
        self._held_to = self._held_by(chosen) if is_held else None
        return chosen

    def _held_by(self, chosen: Route) -> Guidance | None:
        """Return the guidance of the answer: by the task that is written, or else by the one of the instruction."""
        return held_to(self.intent, self._instruction(chosen.task if chosen.task_source in CERTAIN else ""))

    def _instruction(self, task: str) -> Instruction | None:
        """Return what the chat asks for, read once for each task ("": whichever it asks for)."""
        if task not in self._instructions:
            self._instructions[task] = hook.read(self.intent.messages, task)
        return self._instructions[task]

    def _why_unfit(self, model: ModelEntry, task: str) -> str:
        if model.answers_labels:
            if self._unlabelled is None:
                self._unlabelled = why_unlabelled(self.intent, self._instruction(CLASSIFY))
            if self._unlabelled:
                return self._unlabelled
        if model.tenant is not None:  # a tenant's own may know what the reader doesn't
            return ""
        own = self.intent.sampling.guidance
        has_schema = own is not None and own.kind is not GuidanceKind.JSON_OBJECT
        return why_unsure(self._instruction(task), has_schema=has_schema)

    def _price(self, model: str) -> Price | None:
        """Return what the request would cost with `model`; None where no price of it is in force."""
        entry = self._snapshot.catalogue.models.get(model)
        card = None if entry is None else self._snapshot.prices.get(entry.rate_card)
        if card is None:
            return None
        most = self.intent.sampling.max_tokens
        return estimate(card, self.principal.multiplier_at(card, self.intent.tier), tokens_of(self._query), most)

    def _prefix(self, model: str) -> Sequence[Digest]:
        found = self._prefixes.get(model)
        if found is None:
            found = self._prefixes[model] = prefix_of(model, self.principal, self.intent)
        return found


def route_headers(route: Route) -> dict[str, str]:
    """Return the headers that tell the model and the task of a route, in ASCII: what isn't stands as in an address."""
    task = {TASK: quote(route.task, safe=_PLAIN)} if route.task else {}
    return {MODEL: quote(route.model, safe=_PLAIN), **task}


def prefix_of(model: str, principal: Principal, intent: Intent) -> tuple[Digest, ...]:
    """Return the chain of digests of a chat's prompt; none for embeddings, whose inputs are cached nowhere."""
    if intent.prompt is not None:
        text = intent.prompt if isinstance(intent.prompt, str) else " ".join(map(str, intent.prompt))
        return chain((model, str(principal.tenant)), (text,))
    tools = intent.tools.texts if intent.tools is not None else ()
    texts = (text for message in intent.messages for text in (message.role, *message.texts, *_urls(message)))
    return chain((model, str(principal.tenant)), (*tools, *texts))


def _urls(message: Message) -> tuple[str, ...]:
    return tuple(image.url for image in message.images)


def _as_adapter(error: EngineError, model: str) -> EngineError:
    """Return the error with the public name of the `model`, where it is about its adapter; that an engine doesn't know
    it yet is no fault of the request.
    """
    if error.code == "adapter_refused":
        return InvalidRequestError(f"The model '{model}': {error.message}", code=error.code, param="model")
    if error.code != "unknown_adapter":
        return error
    return OverloadedError("This model's adapter is not loaded yet: try again.", code="adapter_not_ready")


COMPARED_CHARACTERS = 200  # of a text's first line and of its last: an instruction stands at one of them


async def placed(runtime: Runtime, principal: Principal, intent: Intent) -> Placement:
    """Return where the request of `intent` runs; raise the Refusal for why nowhere.

    One for ``auto`` that doesn't say its task is compared with the rules' examples, if there are any.
    """
    snapshot = await runtime.catalogue.current()
    if (name := snapshot.catalogue.named(intent.model)) != intent.model:
        intent = msgspec.structs.replace(intent, model=name)
    query = query_of(principal, intent)
    if is_automatic(intent.model):
        if intent.messages:
            query = msgspec.structs.replace(query, kept=_kept(runtime, principal, intent))
        asker = Asker(principal.tenant, principal.queue, principal.priority, principal.weight)
        texts = Texts(intent.messages, texts_of(intent))
        query = await read(runtime.catalogue.examples, query, snapshot.catalogue, texts, asker)
    return Placement(runtime.engines, snapshot, principal, intent, query)


class Texts(NamedTuple):
    """The texts of a request that may tell its task."""

    messages: Sequence[Message]
    """The instruction, as the reader gets it."""
    compared: Sequence[str]
    """The text that is compared with examples."""


async def read(
    examples: Examples | None, query: RouteQuery, catalogue: Catalogue, texts: Texts, asker: Asker
) -> RouteQuery:
    """Return `query` with what its instruction asks for, or else what comparing it with the rules' examples told.

    Neither is looked at where it can't make a difference, and without `examples` nothing is compared.
    """
    if not is_automatic(query.model) or says_task(query)[0]:
        return query
    rules = catalogue.rules_for(query.own)
    if not to_compare(query, rules):
        return query
    query = msgspec.structs.replace(query, instruction=hook.read(texts.messages))
    candidates = to_compare(query, rules)
    if not candidates or examples is None:
        return query
    told = await examples.compare(catalogue, candidates, texts.compared, asker)
    return msgspec.structs.replace(query, compared=told)


def remember(runtime: Runtime, placement: Placement) -> None:
    """Have the requests that go on from this one get the same model."""
    principal, intent = placement.principal, placement.intent
    if is_automatic(intent.model) and intent.messages:
        _, key = keys_of(principal.project, intent.messages)
        runtime.catalogue.conversations.keep(principal.tenant, key, Kept(placement.route.goes_on_with))


def _kept(runtime: Runtime, principal: Principal, intent: Intent) -> Kept | None:
    """Return what the request was given that this one goes on from; None for a first one, or where nobody knows."""
    if intent.earlier_model:
        return Kept(intent.earlier_model)
    before, _ = keys_of(principal.project, intent.messages)
    return None if before is None else runtime.catalogue.conversations.get(principal.tenant, before)


def query_of(principal: Principal, intent: Intent) -> RouteQuery:
    """Return the request of `intent` as routing sees it."""
    tools = intent.tools
    return RouteQuery(
        model=intent.model,
        kind=intent.kind.value,
        plan=principal.plan,
        plan_default_task=principal.default_task,
        allowed_models=principal.allowed_models,
        own=principal.own,
        key_models=principal.key_models,
        task=intent.task,
        prompt_characters=intent.characters,
        images=intent.images,
        has_tools=(tools is not None and bool(tools.callable)) or any(one.has_tools for one in intent.messages),
        has_schema=intent.sampling.guidance is not None,
    )


def texts_of(intent: Intent) -> tuple[str, ...]:
    """Return what is compared with examples: lines of what the system is told, and of the last question."""
    if intent.prompt is not None:
        return ends_of(intent.prompt) if isinstance(intent.prompt, str) else ()
    texts = hook.said(intent.messages)
    return tuple(dict.fromkeys(end for text in texts for end in ends_of(text)))


def ends_of(text: str) -> tuple[str, ...]:
    """Return the beginning of the text's first line and the end of its last, once if they are the same.

    What is to be done stands there; what it is to be done with, often much longer, is like anything.
    """
    text = text.strip()
    if not text:
        return ()
    first, last = text[:COMPARED_CHARACTERS], text[-COMPARED_CHARACTERS:]  # a text may have a million lines
    return tuple(dict.fromkeys((first.splitlines()[0].strip(), last.splitlines()[-1].strip())))
