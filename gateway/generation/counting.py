"""Requests that are tokenised and not run: how many tokens a prompt has, and which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID

from base.http import Headers
from billing.limits.types import Take, Taken, rate_headers
from gateway.concurrency import Cap
from gateway.errors.faults import draining, refusal_of_limit
from gateway.errors.refusal import Refusal
from gateway.generation.admission import request_of
from gateway.generation.intent import Intent
from gateway.generation.placement import Placement, placed
from gateway.runtime.principals import Principal
from gateway.runtime.requests import Stage
from gateway.runtime.runtime import Runtime
from inference.engine import Engine
from inference.types import Prepared, Tokens

MOST_AT_ONCE = 8


def _too_many() -> Refusal:
    text = f"{MOST_AT_ONCE} of your requests are being tokenised already."
    return Refusal(429, "concurrency_limit_exceeded", text, headers={"retry-after": "1"})


# Beside the requests that run: who has as many of these as its plan allows still may count.
counting: Cap[UUID] = Cap(MOST_AT_ONCE, _too_many)


class Counted(NamedTuple):
    """A prompt's size where it would run now, and what the answer tells in its headers: the tenant's rates after that
    was asked, and the route.
    """

    prepared: Prepared
    model: str
    headers: Headers


async def count(runtime: Runtime, principal: Principal, intent: Intent, request_id: UUID) -> Counted:
    """Return the request of `intent` as the engine that it would run on prepares it; it doesn't run.

    Nothing is held or charged; one request is taken of the tenant's rate. Raise a Refusal for what could not run,
    too.
    """
    async with counted_place(runtime, principal, intent) as (placement, rates):
        engine, prepared = await placement.prepare(request_of(principal, intent, request_id.hex))
        await engine.cancel(request_id.hex)  # the worker needn't keep its ids
        return Counted(prepared, placement.route.model, rates | placement.headers)


class Tokenized(NamedTuple):
    """A prompt's tokens, the model's context, and the answer's headers (see `Counted`)."""

    tokens: Tokens
    context: int
    headers: Headers


async def tokens_of(
    runtime: Runtime, principal: Principal, intent: Intent, request_id: UUID, *, special: bool, with_texts: bool
) -> Tokenized:
    """Return the tokens of the prompt of `intent`, where it would run; see `count` and `Engine.tokenize`."""
    request = request_of(principal, intent, request_id.hex)

    async def asked(engine: Engine) -> Tokens:
        return await engine.tokenize(request, special=special, with_texts=with_texts)

    async with counted_place(runtime, principal, intent) as (placement, rates):
        engine, tokens = await placement.ask(asked)
        context = 0 if engine.info is None else engine.info.max_context
        return Tokenized(tokens, context, rates | placement.headers)


async def text_of(runtime: Runtime, principal: Principal, intent: Intent, request_id: UUID) -> tuple[str, Headers]:
    """Return the text of the token ids in the prompt of `intent`, and the answer's headers; see `count`."""
    request = request_of(principal, intent, request_id.hex)
    async with counted_place(runtime, principal, intent) as (placement, rates):
        _, text = await placement.ask(lambda engine: engine.detokenize(request))
        return text, rates | placement.headers


@asynccontextmanager
async def counted_place(
    runtime: Runtime, principal: Principal, intent: Intent
) -> AsyncIterator[tuple[Placement, dict[str, str]]]:
    """Have a request that won't run placed on a replica, and one request taken of the tenant's rate: yield where it is,
    and the headers with the rates. A Refusal raised in the block tells its route.
    """
    if runtime.requests.stage is Stage.DRAINING:
        raise draining()
    with counting.share(principal.tenant) as take:
        take(1)
        decision = await runtime.rates.take([Take(bucket, 1) for bucket in principal.request_buckets])
        if not isinstance(decision, Taken):
            raise refusal_of_limit(decision)
        placement = await placed(runtime, principal, intent)
        try:
            yield placement, dict(rate_headers(decision.states))
        except Refusal as refusal:
            refusal.headers |= placement.headers
            raise
        finally:
            placement.leave()
