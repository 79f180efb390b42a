"""Several answers of one request (`n`): a request of its own at the server for each, told as one.

    answer 0:  Started  Delta…  Delta…  Finished ┐
    answer 1:           (Started)  Delta…        ├─ Started  Delta 0  Delta 1  Delta 0 …  Finished
    answer 2:           (Started)     Delta…     ┘

Not all servers know `n`, and those that do draw answers of one seed in ways of their own. The first answer begins
alone: what refuses it would refuse the others, and they may find its prompt in the server's cache. Each computes the
prompt, so the usage has as many prompts as answers. The allowance is divided between them when the request begins.
One that fails ends the request, so the others are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from inference.clients.remote.run import CancelledRunError, RemoteRun
from inference.errors import EngineError
from inference.types import (
    WORST_FIRST,
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
    Prepared,
    Started,
    Usage,
    seed_of,
)

_READ_AHEAD = 16  # events of all answers that wait here; what comes meanwhile waits in each one's connection


def each_of(prepared: Prepared, allowance: int) -> Iterator[tuple[Prepared, int]]:
    """Yield what `prepared` asks for as a request for each answer, with its share of output and of the `allowance`."""
    request, count = prepared.request, prepared.request.sampling.n
    most, allowed = _shares(prepared.max_output, count), _shares(allowance, count)
    for index in range(count):
        seed = None if request.sampling.seed is None else seed_of(request.sampling.seed, index)
        sampling = replace(request.sampling, n=1, best_of=None, seed=seed)
        one = replace(request, id=f"{request.id}-{index}" if index else request.id, sampling=sampling)
        tokens = prepared.prompt_tokens // count
        yield replace(prepared, request=one, prompt_tokens=tokens, max_output=most[index], prompts=1), allowed[index]


def _shares(tokens: int, count: int) -> list[int]:
    each, over = divmod(tokens, count)
    return [each + (index < over) for index in range(count)]


class RemoteAnswers:
    """One request at a remote engine, whose answers are `runs`. It is used as a single one's `RemoteRun` is."""

    def __init__(self, runs: Sequence[RemoteRun]) -> None:
        self._runs = runs
        self._ends: dict[int, Finished] = {}
        self._events: asyncio.Queue[tuple[int, Event | Exception]] = asyncio.Queue(_READ_AHEAD)
        self._is_cancelled = False

    @property
    def usage(self) -> Usage:
        """Usage of all answers so far, their prompts included."""
        return _sum([run.usage for run in self._runs])

    @property
    def tells_cached(self) -> bool:
        """Whether the server has said of each prompt how much of it was cached."""
        return all(run.tells_cached for run in self._runs)

    @property
    def has_place(self) -> bool:
        """Whether anything was sent, before which nothing that befalls it is the server's doing."""
        return self._runs[0].has_place

    def cancel(self) -> None:
        """End all answers now, and begin no more."""
        self._is_cancelled = True
        for run in self._runs:
            run.cancel()

    async def chat(self) -> AsyncGenerator[Event, None]:
        """Yield every event; raise `EngineError` instead of the first when the server took nothing."""
        tasks = [asyncio.create_task(self._read(0))]
        try:
            while len(self._ends) < len(self._runs):
                index, event = await self._events.get()
                match event:
                    case Started():
                        if not index:
                            yield event
                            tasks += [asyncio.create_task(self._read(other)) for other in range(1, len(self._runs))]
                    case Delta():
                        yield replace(event, index=index, usage=self.usage)
                    case Finished():
                        if not self._runs[0].has_begun:
                            yield self.end(event.reason, event.error)
                            return
                        yield self._ended(index, event)
                    case EngineError() | CancelledRunError():
                        if not self._runs[0].has_begun:
                            raise event
                        yield self._ended(index, self._failed(index, event))
                    case _:
                        assert isinstance(event, Exception), event
                        raise event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        yield self._finished()

    def end(self, reason: FinishReason, error: EngineFault | None = None) -> Finished:
        """Return the last event of a request that ends now."""
        for index, run in enumerate(self._runs):
            self._ends.setdefault(index, run.end(reason, error))
        return self._finished()

    # -- inside -------------------------------------------------------------------------------------------------

    async def _read(self, index: int) -> None:
        run = self._runs[index]
        if self._is_cancelled or not run.most_output:
            reason = FinishReason.CANCELLED if self._is_cancelled else FinishReason.ALLOWANCE
            await self._events.put((index, Finished(reason, Usage())))
            return
        try:
            async with aclosing(run.chat()) as events:
                async for event in events:
                    await self._events.put((index, event))
        except Exception as error:  # noqa: BLE001 - whoever reads the events raises it
            await self._events.put((index, error))

    def _failed(self, index: int, error: EngineError | CancelledRunError) -> Finished:
        """Return the end of an answer that the server didn't take, though it took the first."""
        if isinstance(error, CancelledRunError):
            return self._runs[index].end(FinishReason.CANCELLED)
        fault = EngineFault(error.code, error.message, retryable=True)
        if error.may_have_run:
            return self._runs[index].end(FinishReason.ERROR, fault)
        return Finished(FinishReason.ERROR, Usage(), fault)

    def _ended(self, index: int, end: Finished) -> Delta:
        self._ends[index] = end
        if end.reason is FinishReason.ERROR:
            self.cancel()
        return Delta("", self.usage, index=index, ended=end.reason, stop=end.stop)

    def _finished(self) -> Finished:
        """Return the last word: why, by the first answer that ended so, and what is true of all."""
        ends = [self._ends[index] for index in range(len(self._runs))]
        first = ends[0]
        worst = min(ends, key=lambda end: WORST_FIRST.index(end.reason))
        return Finished(
            worst.reason,
            _sum([end.usage for end in ends]),
            worst.error,
            exact=all(end.exact for end in ends),
            is_estimate=any(end.is_estimate for end in ends),
            queued_ms=first.queued_ms,
            prefill_ms=first.prefill_ms,
            decode_ms=max(end.queued_ms + end.prefill_ms + end.decode_ms for end in ends)
            - first.queued_ms
            - first.prefill_ms,
            findings=tuple(sorted({finding for end in ends for finding in end.findings})),
        )


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(usage.input for usage in usages),
        sum(usage.cache_read for usage in usages),
        sum(usage.output for usage in usages),
        sum(usage.reasoning for usage in usages),
    )
