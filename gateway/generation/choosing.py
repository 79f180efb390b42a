"""The evidence by which ``auto`` decides: the request's structure, its text, its conversation's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.generation.intent import Intent
from gateway.generation.placement import Placement
from gateway.runtime.conversations import keys_of
from gateway.runtime.examples import Asker, Examples
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Runtime
from inference.messages import Message
from routing import hook
from routing.catalogue import Catalogue
from routing.conditions import to_compare
from routing.tasks import is_automatic, says_task
from routing.types import Kept, RouteQuery

COMPARED_CHARACTERS = 200  # of a text's first line and of its last: an instruction stands at one of them


async def placed(runtime: Runtime, principal: Principal, intent: Intent) -> Placement:
    """Return where the request of `intent` runs; raise the Refusal for why nowhere.

    One for ``auto`` that doesn't say its task is compared with the rules' examples, if there are any.
    """
    snapshot = await runtime.current_snapshot()
    if (name := snapshot.catalogue.named(intent.model)) != intent.model:
        intent = msgspec.structs.replace(intent, model=name)
    query = query_of(principal, intent)
    if is_automatic(intent.model):
        if intent.messages:
            query = msgspec.structs.replace(query, kept=_kept(runtime, principal, intent))
        asker = Asker(principal.tenant, principal.queue, principal.priority, principal.weight)
        texts = Texts(intent.messages, texts_of(intent))
        query = await read(runtime.examples, query, snapshot.catalogue, texts, asker)
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
        runtime.conversations.keep(principal.tenant, key, Kept(placement.route.goes_on_with))


def _kept(runtime: Runtime, principal: Principal, intent: Intent) -> Kept | None:
    """Return what the request was given that this one goes on from; None for a first one, or where nobody knows."""
    if intent.earlier_model:
        return Kept(intent.earlier_model)
    before, _ = keys_of(principal.project, intent.messages)
    return None if before is None else runtime.conversations.get(principal.tenant, before)


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
