"""Requests that are tokenised and not run: how many tokens a prompt has, and which; what they would cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID

from base.http import Headers
from billing import rating
from billing.limits.types import Take, Taken, rate_headers
from billing.rating import CardPrices
from gateway.concurrency import Cap
from gateway.errors.faults import draining, refusal_of_limit
from gateway.errors.refusal import Refusal
from gateway.generation.admission import request_of
from gateway.generation.credit import Meter, priced
from gateway.generation.intent import Intent
from gateway.generation.placement import Placement, placed
from gateway.runtime.lengths import Usual
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


class Cliff(NamedTuple):
    """A context tier that begins near a prompt's length, and the request's usual µcr just below it and in it."""

    context: int
    below: int
    above: int


class Quoted(NamedTuple):
    """A request's cost where it would run now, in µcr: at most, and with an answer as long as half of those like it
    are, or nine in ten. `cached` of its prompt are probably cached there.
    """

    counted: Counted
    card: CardPrices
    multiplier_bp: int
    context: int
    max_output: int
    cached: int
    usual: Usual
    most: int
    half: int
    nine_in_ten: int
    cliff: Cliff | None


NEAR_PERCENT = 20
"""A tier is near a prompt whose length differs from its beginning by so much of it."""


async def quote(runtime: Runtime, principal: Principal, intent: Intent, request_id: UUID) -> Quoted:
    """Return what the request of `intent` would cost; see `count`. A person's, who still types, takes none of the
    rate.
    """
    takes_rate = principal.api_key is not None
    async with counted_place(runtime, principal, intent, takes_rate=takes_rate) as (placement, rates):
        engine, prepared = await placement.prepare(request_of(principal, intent, request_id.hex))
        await engine.cancel(request_id.hex)
        price, route = priced(placement, prepared), placement.route
        meter, info = price.meter, engine.info
        usual = await runtime.lengths.of(principal.tenant, route.model)
        cached = min(route.matched, max(prepared.prompt_tokens - 1, 0))
        half, nine_in_ten = (length * intent.sampling.answers for length in (usual.lengths.p50, usual.lengths.p90))
        counted = Counted(prepared, route.model, rates | placement.headers)
        return Quoted(
            counted,
            meter.card,
            meter.multiplier_bp,
            route.context_length if info is None else info.max_context,
            meter.max_output,
            cached,
            usual,
            meter.most,
            min(_cost(meter, prepared.prompt_tokens, cached, half), meter.most),
            min(_cost(meter, prepared.prompt_tokens, cached, nine_in_ten), meter.most),
            _cliff_near(meter, prepared.prompt_tokens, cached, half),
        )


def _cost(meter: Meter, prompt: int, cached: int, output: int) -> int:
    """Return the µcr of a prompt of which so much is cached, with an answer of that length or the longest permitted."""
    hit = min(cached, prompt)
    classes = {"input": prompt - hit, "cache_read": hit, "output": min(output, meter.max_output)}
    return rating.charge(classes, meter.card, meter.multiplier_bp)


def _cliff_near(meter: Meter, prompt: int, cached: int, output: int) -> Cliff | None:
    """Return the nearest context tier that begins near a prompt of that length."""
    starts = [tier.min_context for tier in meter.card.tiers[1:]]
    near = [start for start in starts if abs(prompt - start) * 100 <= NEAR_PERCENT * start]
    if not near:
        return None
    start = min(near, key=lambda one: abs(prompt - one))
    return Cliff(start, *(_cost(meter, length, cached, output) for length in (start - 1, start)))


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
    runtime: Runtime, principal: Principal, intent: Intent, *, takes_rate: bool = True
) -> AsyncIterator[tuple[Placement, dict[str, str]]]:
    """Have a request that won't run placed on a replica, and one request taken of the tenant's rate if it `takes_rate`:
    yield where it is, and the headers with the rates. A Refusal raised in the block tells its route.
    """
    if runtime.requests.stage is Stage.DRAINING:
        raise draining()
    with counting.share(principal.tenant) as take:
        take(1)
        buckets = principal.request_buckets if takes_rate else ()
        decision = await runtime.rates.take([Take(bucket, 1) for bucket in buckets])
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
