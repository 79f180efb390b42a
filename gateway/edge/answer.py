"""What the endpoints share between a generation and its client: the first event, failures, headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from billing.limits.headers import rate_headers
from gateway.edge.wire.usage import credits_text
from gateway.errors.refusal import Refusal
from gateway.generation.events import GenerationEvent, Outcome
from gateway.generation.generation import Generation
from inference.types import FinishReason

HEAD_SECONDS = 10.0


async def opened(generation: Generation, seconds: float = HEAD_SECONDS) -> AsyncGenerator[GenerationEvent, None]:
    """Return the generation's events, after waiting up to `seconds` for the first of them.

    A generation that fails before anything else is raised as a Refusal, so that a stream which can't begin has the
    status of its failure. The caller closes the iterator.
    """
    events = generation.events()
    first = asyncio.ensure_future(anext(events))
    try:
        await asyncio.wait({first}, timeout=seconds)
        if first.done() and isinstance(outcome := first.result(), Outcome):
            _raise_failure(outcome)
    except BaseException:
        await _end(first)
        raise
    return _resumed(first, events)


def _raise_failure(outcome: Outcome) -> None:
    failure = failure_of(outcome)
    if failure is not None:
        raise failure


async def _resumed(
    first: asyncio.Future[GenerationEvent], events: AsyncIterator[GenerationEvent]
) -> AsyncGenerator[GenerationEvent, None]:
    try:
        yield await first
        async for event in events:
            yield event
    finally:
        await _end(first)


async def _end(first: asyncio.Future[GenerationEvent]) -> None:
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


def failure_of(outcome: Outcome) -> Refusal | None:
    """The error that an outcome is for its client; None when it is an answer."""
    headers = credit_headers(outcome)
    if outcome.error is not None:
        fault = outcome.error
        status = 503 if fault.retryable or fault.code == "settlement_pending" else 500
        return Refusal(status, fault.code, fault.message, headers=headers, should_retry=fault.retryable)
    if outcome.reason is FinishReason.CANCELLED:
        return Refusal(503, "generation_cancelled", "The generation was cancelled before its end.", headers=headers)
    if outcome.reason is FinishReason.ERROR:
        return Refusal(500, "engine_error", "The engine failed.", headers=headers)
    return None


def finish_of(outcome: Outcome) -> str:
    """Chat Completions' `finish_reason`."""
    return "stop" if outcome.reason is FinishReason.STOP else "length"


def credit_headers(outcome: Outcome) -> dict[str, str]:
    """What the request cost, for answers that have headers after it is known."""
    text = credits_text(outcome.charge)
    return {} if text is None else {"x-sluice-credits": text}


def answer_headers(generation: Generation) -> dict[str, str]:
    """What every answer of a generation says in its head: the rate limits after it was admitted."""
    return dict(rate_headers(generation.rate_states))
