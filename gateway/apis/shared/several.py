"""Several generations of one request, each with a hold and a usage record of its own, answered with as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import structlog

from gateway.apis.shared.answer import failure_of
from gateway.durable.delivery import Outcome
from gateway.errors.faults import refusal_of
from gateway.errors.refusal import Refusal, internal_error
from gateway.generation.generation import Generation
from gateway.generation.items import GenerationEvent
from gateway.generation.placement import route_headers
from inference.types import Delta, EngineFault, FinishReason, Usage

log = structlog.get_logger(__name__)

_READ_AHEAD = 16  # events of all generations that wait here; more wait in each one's own, bounded buffer

Start = Callable[[], Awaitable[Generation]]


class Several:
    """The generation `first`, which has begun, and those that `others` start, at most `width` at once.

    The answers of number i have the indices from i·n on. One that fails is among the `failures`, by its number, and
    leaves the others as they are, since what they have is paid for; if all fail, so does the whole.
    """

    def __init__(self, first: Generation, others: Sequence[Start], *, width: int) -> None:
        self.failures: dict[int, Refusal] = {}
        self._first = first
        self._others = others
        self._n = first.intent.sampling.n
        self._places = asyncio.Semaphore(max(1, width))
        self._running: set[Generation] = {first}
        self._latest = first
        self._is_left = False
        self._outcomes: list[Outcome] = []
        self._events: asyncio.Queue[GenerationEvent | None] = asyncio.Queue(_READ_AHEAD)

    @property
    def headers(self) -> dict[str, str]:
        """The tenant's rates after the latest was taken from them, and the first one's route."""
        return {**self._latest.headers, **route_headers(self._first.route)}

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The wishes of the request that change nothing, as far as the first tells them."""
        return self._first.not_enforced

    @property
    def ended_at_once(self) -> Outcome | None:
        """None: however one ends, others go on."""
        return None

    def client_left(self) -> None:
        """Stop those that run, and begin no more."""
        self._is_left = True
        for generation in self._running:
            generation.client_left()

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Yield the pieces of all answers as they come, and one outcome of all, with what they used and cost."""
        count = 1 + len(self._others)
        tasks = [asyncio.create_task(self._run(number)) for number in range(count)]
        try:
            while count:
                event = await self._events.get()
                if event is None:
                    count -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        yield self._outcome()

    async def _run(self, number: int) -> None:
        reason: FinishReason | None = None
        try:
            async with self._places:
                if not self._is_left:
                    reason = await self._one(number)
        except Exception as error:  # one prompt's failure is not the others'
            refusal = refusal_of(error)
            if refusal is None:
                log.exception("unhandled")
            self.failures[number] = refusal or internal_error()
        if reason is not None and self._n == 1:  # of several answers the engine says it of each
            await self._events.put(Delta("", Usage(), index=number, ended=reason))
        await self._events.put(None)

    async def _one(self, number: int) -> FinishReason:
        generation = self._first if number == 0 else await self._others[number - 1]()
        self._running.add(generation)
        self._latest = generation
        if self._is_left:
            generation.client_left()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, Delta):
                    await self._events.put(replace(event, index=number * self._n + event.index))
                elif isinstance(event, Outcome):
                    self._running.discard(generation)
                    self._outcomes.append(event)
                    if (failure := failure_of(event)) is not None:
                        self.failures[number] = failure
                    return event.reason
        raise RuntimeError("the generation ended without an outcome")

    def _outcome(self) -> Outcome:
        ended = self._outcomes
        usage = Usage(
            sum(outcome.usage.input for outcome in ended),
            sum(outcome.usage.cache_read for outcome in ended),
            sum(outcome.usage.output for outcome in ended),
            sum(outcome.usage.reasoning for outcome in ended),
        )
        charges = [outcome.charge for outcome in ended if outcome.charge is not None]
        error = None
        if len(self.failures) > len(self._others):
            failure = self.failures[0]
            error = EngineFault(failure.code, failure.message, retryable=failure.status == 503, param=failure.param)
        return Outcome(
            FinishReason.STOP if error is None else FinishReason.ERROR,
            usage,
            sum(charges) if len(charges) == len(ended) else None,
            sluice_reason=next((outcome.sluice_reason for outcome in ended if outcome.sluice_reason), None),
            error=error,
            is_waived=bool(ended) and all(outcome.is_waived for outcome in ended),
        )
