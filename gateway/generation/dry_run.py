"""The route of a request and its reasons, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import msgspec
from asgiref.sync import async_to_sync

from base.database.threads import DatabaseThreads
from billing.models import PlanVersion
from fleet.adapters import own_terms
from gateway.generation.labelling import NO_LABELS, why_unsure
from gateway.generation.placement import Texts, ends_of, estimate, read
from gateway.runtime.data_plane import DataPlane, Live
from gateway.runtime.examples import Asker
from gateway.runtime.principals import models_of_key
from inference.messages import Message
from routing import hook
from routing.catalogue import Catalogue, ModelEntry
from routing.decision import route
from routing.errors import RoutingError
from routing.places import tokens_of
from routing.types import Kept, Price, Route, RouteQuery

NOBODY = UUID(int=0)
"""The tenant of a dry run that is nobody's."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as its sender describes it; without `prompt_characters` it has those of its `text`.

    `models` are what its key is for (none: all of the plan's), `conversation` the model that its conversation has.
    """

    model: str = "auto"
    kind: str = "chat"
    task: str | None = None
    text: str = ""
    prompt_characters: int | None = None
    max_tokens: int | None = None
    tools: bool = False
    schema: bool = False
    images: str = "none"
    models: Sequence[str] = ()
    conversation: str = ""


def dry_run(
    live: Live, version: PlanVersion, wanted: Wanted, tenant: UUID | None = None, project: UUID | None = None
) -> Route:
    """Return the decision for a request of the `tenant`'s `project` on those terms; raise the RoutingError for why
    there is none. Without a project it may name every model of the tenant's own.

    Its text is compared with the rules' examples as a request's is, and kept nowhere but in that comparison's cache of
    digests. In a process of pages alone a gateway is asked for the decision.
    """
    if live.far is not None:
        return _asked(live.far, Question(version.pk, wanted, tenant, project))
    run = _begun(live, version, wanted, tenant, project)
    return run.decided(async_to_sync(run.read)())


@dataclass(frozen=True, slots=True)
class _Run:
    """A dry run: its query, and what is needed to decide it."""

    live: Live
    version: PlanVersion
    wanted: Wanted
    catalogue: Catalogue
    query: RouteQuery
    texts: Texts
    asker: Asker

    async def read(self) -> RouteQuery:
        """Return the query with what its text says, compared with the rules' examples where a gateway runs here."""
        examples = self.live.runtime.catalogue.examples if self.live.runtime is not None else None
        return await read(examples, self.query, self.catalogue, self.texts, self.asker)

    def decided(self, query: RouteQuery) -> Route:
        """Return the decision for the query."""
        price = _Prices(self.live, self.version, query, self.wanted.max_tokens, self.catalogue)
        unfit = partial(_unfit, self.wanted, self.texts.messages)
        return route(query, self.catalogue, self.live, price=price, unfit=unfit)


def _begun(live: Live, version: PlanVersion, wanted: Wanted, tenant: UUID | None, project: UUID | None) -> _Run:
    length = len(wanted.text) if wanted.prompt_characters is None else wanted.prompt_characters
    catalogue = live.catalogue()
    key, own = frozenset(wanted.models), own_terms(version, tenant, project)
    known = (catalogue.models.get(name) for name in key)
    has_own = any(model is not None and model.tenant is not None and not model.is_hidden_from(own) for model in known)
    allowed = models_of_key(key, frozenset(version.allowed_models), has_own=has_own)
    if allowed is None:
        raise RoutingError(
            "model_not_allowed", "The plan has none of the models that this key is for.", model=wanted.model
        )
    query = RouteQuery(
        model=catalogue.named(wanted.model),
        kind=wanted.kind,
        plan=version.plan.slug,
        plan_default_task=version.default_task,
        allowed_models=allowed,
        key_models=key,
        own=own,
        task=wanted.task or None,
        prompt_characters=length,
        images=wanted.images,
        has_tools=wanted.tools,
        has_schema=wanted.schema,
        kept=Kept(wanted.conversation) if wanted.conversation else None,
    )
    asked_by = tenant or NOBODY
    asker = Asker(asked_by, str(asked_by), version.priority, 1000)
    texts = Texts((Message("user", (wanted.text,)),), ends_of(wanted.text))
    return _Run(live, version, wanted, catalogue, query, texts, asker)


def _unfit(wanted: Wanted, messages: Sequence[Message], model: ModelEntry, task: str) -> str:
    """Return why a classifier or a specialist couldn't answer; "" where it could, as far as this tells."""
    if model.answers_labels and wanted.tools:
        return "the request has tools"
    if not wanted.text:
        return ""
    if model.answers_labels and not wanted.schema:
        instruction = hook.read(messages, hook.CLASSIFY)
        if instruction is None or not instruction.labels:
            return NO_LABELS
    return "" if model.tenant is not None else why_unsure(hook.read(messages, task), has_schema=wanted.schema)


class Question(msgspec.Struct, frozen=True):
    """A dry run that a process of pages asks a gateway for."""

    version: UUID
    wanted: Wanted
    tenant: UUID | None = None
    project: UUID | None = None


class Decision(msgspec.Struct, frozen=True):
    """The answer: the route, or code, message and model of the RoutingError."""

    route: Route | None = None
    error: tuple[str, str, str] | None = None


async def decide(live: Live, question: Question, threads: DatabaseThreads) -> Decision:
    """Return the decision of a dry run that another process asks this gateway for."""

    def begun() -> _Run:
        version = PlanVersion.objects.select_related("plan").get(pk=question.version)
        return _begun(live, version, question.wanted, question.tenant, question.project)

    try:
        run = await threads.run(begun, owner=question.tenant)
        return Decision(run.decided(await run.read()))
    except RoutingError as error:
        return Decision(error=(error.code, error.message, error.model))


def _asked(far: DataPlane, question: Question) -> Route:
    try:
        decision = msgspec.json.decode(far.explain(msgspec.json.encode(question)), type=Decision)
    except (OSError, msgspec.MsgspecError) as error:
        message = "No gateway answers: where a request would go isn't known now."
        raise RoutingError("no_ready_deployment", message, model=question.wanted.model) from error
    if decision.route is None:
        assert decision.error is not None, "one of both"
        code, message, model = decision.error
        raise RoutingError(code, message, model=model)
    return decision.route


class _Prices:
    """The prices of models on a plan's terms."""

    def __init__(
        self, live: Live, version: PlanVersion, query: RouteQuery, max_tokens: int | None, catalogue: Catalogue
    ) -> None:
        self._cards = live.prices()
        self._multiplier = version.multiplier_bp
        self._tokens = tokens_of(query)
        self._max_tokens = max_tokens
        self._models = catalogue.models

    def __call__(self, model: str) -> Price | None:
        entry = self._models.get(model)
        card = None if entry is None else self._cards.get(entry.rate_card)
        return None if card is None else estimate(card, self._multiplier, self._tokens, self._max_tokens)
