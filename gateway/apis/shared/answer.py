"""Answering with a generation, whole or as a stream; what differs between the APIs is a `Format`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

from base.http import ClientLeftError, EventStream, Send, send_json, watching
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import Refusal
from gateway.generation.counting import count
from gateway.generation.generation import Generation, start_generation
from gateway.generation.intent import Intent
from gateway.generation.items import GenerationEvent
from gateway.http.endpoint import Call
from gateway.wire.demands import not_enforced_header
from gateway.wire.usage import credits_text
from inference.types import Delta, FinishReason, Vector

T = TypeVar("T")
R = TypeVar("R")

QUESTION = "What is the capital of France?"
"""Asked in the examples of the documentation."""

_FAILURES = (FinishReason.CANCELLED, FinishReason.ERROR)


class Answering(Protocol):
    """The source of an answer: a generation, or several that are seen as one."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer: the tenant's rates, and the route."""
        ...

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The wishes of the request that change nothing."""
        ...

    @property
    def ended_at_once(self) -> Outcome | None:
        """The outcome of one that has ended with nothing before it."""
        ...

    def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Yield what happens, `Outcome` last."""
        ...

    def client_left(self) -> None:
        """Stop."""
        ...


class WholeFormat(Protocol):
    """One API's rendering of a generation that succeeded."""

    def collect(self, event: Delta | Vector) -> None:
        """Take a piece of the answer."""
        ...

    def whole(self, outcome: Outcome) -> object:
        """Return the body of an answer without streaming, once all its pieces were collected."""
        ...


class Format(WholeFormat, Protocol):
    """One API's rendering of a generation, streamed too; each method of a stream returns complete server-sent
    events, or nothing.
    """

    def opening(self) -> bytes:
        """Return the events before any text."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Return the events of a piece of the answer."""
        ...

    def closing(self, outcome: Outcome) -> bytes:
        """Return the last events: usage and end mark of an answer, or the error of a failure, which has no end mark."""
        ...


async def generate(call: Call[R], intent: Intent, told: Callable[[Generation, R], WholeFormat]) -> None:
    """Answer `call` with a generation as it is told of the request; one whose intent is a stream as a `Format`."""
    async with watching(call.scope, call.receive) as client:
        generation = await start_generation(call.runtime, call.principal, intent, call.id)
        format_ = cast("Format", told(generation, call.request))  # whose methods of a stream only a stream calls
        await answer(generation, format_, client, call.send, stream=intent.stream)


async def answer_count(call: Call[Any], intent: Intent, told: Callable[[int], object]) -> None:
    """Answer `call` with the number of tokens of a prompt where it would run; nothing runs or is charged."""
    counted = await count(call.runtime, call.principal, intent, call.id)
    headers = {**counted.headers, **not_enforced_header(intent.not_enforced)}
    await send_json(call.send, 200, told(counted.prepared.prompt_tokens), headers)


async def answer(generation: Answering, told: Format, client: watching, send: Send, *, stream: bool) -> None:
    """Answer with `generation`, streamed if `stream`; a client that disconnects stops it.

    A generation that failed is raised as a Refusal, unless its stream has begun: then the stream ends with the error.
    """
    if not stream:
        await _answer_whole(generation, told, client, send)
        return
    client.stops(generation.client_left)
    if generation.ended_at_once is not None:
        _raise_failure(generation.ended_at_once, generation, client)
    async with (
        aclosing(generation.events()) as events,
        EventStream(send, _headers(generation)) as body,
    ):
        if opening := told.opening():
            await body.write(opening)
        outcome = await relay(events, told.delta, body.write)
        client.stop()
        if client.left:
            raise ClientLeftError
        await body.finish(told.closing(outcome))


async def _answer_whole(generation: Answering, told: WholeFormat, client: watching, send: Send) -> None:
    """Answer with `generation` once it has ended, or raise the Refusal that it failed with."""
    client.stops(generation.client_left)
    async with aclosing(generation.events()) as events:
        outcome = await _collected(events, told)
    client.stop()
    _raise_failure(outcome, generation, client)
    headers = {**_headers(generation, outcome.not_enforced), **_credit_headers(outcome)}
    await send_json(send, 200, told.whole(outcome), headers)


async def relay(
    events: AsyncIterator[GenerationEvent], told: Callable[[Delta], T], write: Callable[[T], Awaitable[None]]
) -> Outcome:
    """Await `write` with what is `told` of each piece of the answer, unless that is nothing; return the outcome."""
    async for event in events:
        match event:
            case Delta():
                if data := told(event):
                    await write(data)
            case Outcome():
                return event
    raise RuntimeError("the generation ended without an outcome")


async def _collected(events: AsyncIterator[GenerationEvent], told: WholeFormat) -> Outcome:
    async for event in events:
        match event:
            case Delta() | Vector():
                told.collect(event)
            case Outcome():
                return event
    raise RuntimeError("the generation ended without an outcome")


def _raise_failure(outcome: Outcome, generation: Answering, client: watching) -> None:
    if client.left:
        raise ClientLeftError
    failure = failure_of(outcome)
    if failure is not None:
        failure.headers |= generation.headers
        raise failure


def failure_of(outcome: Outcome) -> Refusal | None:
    """Return the error that the client gets for an outcome; None when it is an answer."""
    if outcome.error is None and outcome.reason not in _FAILURES:
        return None
    headers, has_record = _credit_headers(outcome), outcome.has_record
    if outcome.error is not None:
        fault = outcome.error
        status = 400 if fault.param is not None else 503 if fault.retryable else 500
        return Refusal(
            status,
            fault.code,
            fault.message,
            param=fault.param,
            headers=headers,
            should_retry=fault.retryable,
            has_record=has_record,
        )
    if outcome.reason is FinishReason.CANCELLED:
        text = "The generation was cancelled before its end."
        return Refusal(503, "generation_cancelled", text, headers=headers, has_record=has_record)
    return Refusal(500, "engine_error", "The engine failed.", headers=headers, has_record=has_record)


def _headers(generation: Answering, dropped: str = "") -> dict[str, str]:
    """Return the headers with rates and route, and the wishes that nothing holds the answer to, what its end shows to
    be `dropped` included.
    """
    told = (*generation.not_enforced, *filter(None, (dropped,)))
    return {**generation.headers, **not_enforced_header(told)}


def _credit_headers(outcome: Outcome) -> dict[str, str]:
    """Return the headers with the request's cost, for answers whose headers are sent after it is known."""
    text = credits_text(outcome.charge)
    return {} if text is None else {"x-sluice-credits": text}
