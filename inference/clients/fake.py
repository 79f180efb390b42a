"""A whole engine in process, deterministic, for tests and benchmarks of what stands above the engine seam.

It keeps the contract of `inference.engine` to the letter: one `Finished` on every path, allowance and extension,
cancellation, embeddings, drain, and a record that `usage_of` answers from. `FakeOptions` says what it generates and
where it fails; the same names are the keys of `EngineSpec.options`, and `FakeEngine.options` may be replaced by a
test while the engine lives.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields
from itertools import cycle, islice

from inference.engine import EngineSpec
from inference.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    UnpreparedError,
    UnreachableError,
)
from inference.text.stops import StopMatcher
from inference.types import (
    Delta,
    EngineFault,
    EngineInfo,
    Event,
    Evidence,
    Finished,
    FinishReason,
    GenerationRequest,
    Health,
    Kind,
    Lost,
    NothingRan,
    Prepared,
    Running,
    Started,
    Usage,
    Vector,
)

REFUSALS: dict[str, type[EngineError]] = {
    "invalid": InvalidRequestError,
    "overloaded": OverloadedError,
    "draining": DrainingError,
    "unprepared": UnpreparedError,
    "unreachable": UnreachableError,
}


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """What a fake engine does. Token numbers count the output from 1.

    `text` is the answer (one token per word) or, when empty, `tokens` numbered words; with `ignore_eos` it repeats.
    With `echo` the answer is the last message, and a message that begins with `bad` fails its row.
    `cached` is the fraction of a prompt that comes from the cache. `prompt_rule` is ``characters`` (one token per
    four) or ``words``. `prepare_error` and `generate_error` are keys of `REFUSALS`. `error_at`, `lose_at` and
    `hang_at` name the token before which a request fails, loses its worker, or waits for `FakeEngine.release`;
    0 is never. `unreachable` makes `usage_of` and `prepare` find nobody.
    """

    model: str = "fake"
    kinds: Sequence[str] = ("chat", "embedding")
    text: str = ""
    echo: bool = False
    bad: str = ""
    tokens: int = 16
    tokens_per_delta: int = 1
    delay: float = 0.0
    cached: float = 0.0
    prompt_rule: str = "characters"
    max_context: int = 8192
    vector_width: int = 8
    pause_seconds: float = 2.0
    prepared_seconds: float = 30.0
    prepare_error: str = ""
    generate_error: str = ""
    error_at: int = 0
    lose_at: int = 0
    hang_at: int = 0
    unreachable: bool = False
    ready: bool = True


class FakeRecord:
    """What ran, by request id; pass one record to two engines (option ``record``) to restart a fake worker."""

    def __init__(self) -> None:
        self.entries: dict[str, Evidence] = {}

    def usage(self) -> Usage:
        """The sum over every finished request, for checks of what was billed against what ran."""
        finished = [entry.usage for entry in self.entries.values() if isinstance(entry, Finished)]
        return Usage(*(sum(getattr(usage, part.name) for usage in finished) for part in fields(Usage)))


@dataclass(slots=True)
class _Run:
    """One request that is being generated."""

    prompt: int
    cached: int
    allowance: int
    last: bool
    produced: int = 0
    reported: Usage = field(default_factory=Usage)
    cancelled: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    created: float = field(default_factory=time.monotonic)

    def usage(self) -> Usage:
        return Usage(input=self.prompt - self.cached, cache_read=self.cached, output=self.produced)


@functools.cache
def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"w{number}" for number in range(1, count + 1))


class FakeEngine:
    """One deployment served by nobody: see `FakeOptions`."""

    def __init__(self, spec: EngineSpec) -> None:
        given = dict(spec.options)
        record = given.pop("record", None)
        self.record: FakeRecord = record if record is not None else FakeRecord()
        self.options = FakeOptions(**given)
        self.deployment = spec.deployment
        self.prepares = 0
        self.extensions: list[tuple[str, int, bool]] = []
        self.cancellations: list[str] = []
        self._prepared: dict[str, tuple[float, Prepared]] = {}
        self._runs: dict[str, _Run] = {}
        self._hanging = asyncio.Event()
        self._released = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._steps = 0

    @property
    def info(self) -> EngineInfo | None:
        options = self.options
        if not options.ready:
            return None
        return EngineInfo(
            deployment=self.deployment,
            model=options.model,
            kinds=frozenset(Kind(kind) for kind in options.kinds),
            max_context=options.max_context,
            max_input=options.max_context,
            vector_width=options.vector_width,
            details={"backend": "fake"},
        )

    # -- the seam -----------------------------------------------------------------------------------------------

    async def prepare(self, request: GenerationRequest) -> Prepared:
        options = self.options
        self.prepares += 1
        if options.unreachable or not options.ready:
            raise UnreachableError("the fake engine is set to be unreachable")
        if self._draining:
            raise DrainingError("the engine is draining")
        if options.prepare_error:
            raise REFUSALS[options.prepare_error](f"the fake engine refuses to prepare: {options.prepare_error}")
        if request.kind not in options.kinds:
            raise InvalidRequestError(f"{options.model} does not take {request.kind} requests")
        if request.kind is Kind.EMBEDDING:
            count = sum(self._input_tokens(request))
            prepared = Prepared(request, count, 0)
        else:
            count = sum(self._count(message.content) + 4 for message in request.messages)
            room = options.max_context - count
            if room < 1:
                raise InvalidRequestError(
                    f"the prompt has {count} tokens, the context {options.max_context}",
                    code="context_length_exceeded",
                    param="messages",
                )
            wanted = request.sampling.max_tokens
            prepared = Prepared(request, count, room if wanted is None else min(wanted, room))
        self._prepared[request.id] = (time.monotonic(), prepared)
        return prepared

    async def generate(self, prepared: Prepared, allowance: int, last: bool) -> AsyncIterator[Event]:
        request = prepared.request
        self._admit(request)
        run = _Run(prepared.prompt_tokens, self._cached(prepared), allowance, last)
        self._runs[request.id] = run
        self.record.entries[request.id] = Running(run.usage())
        self._idle.clear()
        final: Finished | None = None
        source = self._vectors(request, run) if request.kind is Kind.EMBEDDING else self._tokens(prepared, run)
        try:
            async with aclosing(source):
                yield Started(run.cached)
                async for event in source:
                    if isinstance(event, Finished):
                        final = event
                        break
                    if isinstance(event, Delta):
                        run.reported = event.usage
                    yield event
        finally:
            # Without a final event the iterator was closed or its task cancelled.
            ended = final or self._end(run, FinishReason.CANCELLED)
            self.record.entries[request.id] = ended if ended.exact else Lost()
            del self._runs[request.id]
            if not self._runs:
                self._idle.set()
        if final is not None:
            yield final

    async def extend(self, request_id: str, allowance: int, last: bool) -> None:
        self.extensions.append((request_id, allowance, last))
        run = self._runs.get(request_id)
        if run is not None:
            run.allowance, run.last = max(run.allowance, allowance), run.last or last
            run.changed.set()

    async def cancel(self, request_id: str) -> None:
        self.cancellations.append(request_id)
        self._stop(request_id)

    async def usage_of(self, request_id: str) -> Evidence:
        if self.options.unreachable:
            raise UnreachableError("the fake engine is set to be unreachable")
        run = self._runs.get(request_id)
        if run is not None:
            return Running(run.usage())
        return self.record.entries.setdefault(request_id, NothingRan())

    async def health(self) -> Health:
        ready = self.options.ready and not self._draining and not self.options.unreachable
        reason = "" if ready else "draining" if self._draining else "unreachable"
        return Health(ready, reason, running=len(self._runs), steps=self._steps, draining=self._draining)

    async def drain(self, deadline: float) -> None:
        """Take no new work and return when nothing runs, at the latest `deadline` seconds from now (then cancelled)."""
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), deadline)
        for request_id in list(self._runs):
            self._stop(request_id)

    async def close(self) -> None:
        for request_id in list(self._runs):
            self._stop(request_id)

    # -- for tests ----------------------------------------------------------------------------------------------

    async def hanging(self) -> None:
        """Return when a request waits at `hang_at`."""
        await self._hanging.wait()

    def release(self) -> None:
        """Let every request that hangs, and each that comes to that point later, go on."""
        self._released.set()

    # -- inside -------------------------------------------------------------------------------------------------

    def _admit(self, request: GenerationRequest) -> None:
        if isinstance(self.record.entries.get(request.id), NothingRan):
            raise UnpreparedError("the request was declared as never run")
        if self._draining:
            raise DrainingError("the engine is draining")
        refusal = self.options.generate_error
        if refusal:
            raise REFUSALS[refusal](f"the fake engine refuses to generate: {refusal}")
        at, _ = self._prepared.pop(request.id, (float("-inf"), None))
        if time.monotonic() - at > self.options.prepared_seconds:
            raise UnpreparedError("the request is not prepared here")

    async def _tokens(self, prepared: Prepared, run: _Run) -> AsyncGenerator[Event, None]:
        options, sampling = self.options, prepared.request.sampling
        content = prepared.request.messages[-1].content
        answer = content if options.echo else options.text
        words = answer.split(" ") if answer else _numbered(options.tokens)
        endless = islice(cycle(words), prepared.max_output)
        stops = StopMatcher(sampling.stop)
        text, pending = "", 0
        for word in endless if sampling.ignore_eos else islice(words, prepared.max_output):
            if run.produced >= run.allowance and pending:
                yield Delta(text, run.usage())
                text, pending = "", 0
            end = await self._before(run, run.produced + 1, is_step=not pending)
            if end is None and options.bad and content.startswith(options.bad):
                end = self._end(run, FinishReason.ERROR, EngineFault("row_failed", "the fake row failed"))
            if end is not None:
                if text and end.exact:
                    yield Delta(text, run.usage())
                yield end
                return
            run.produced += 1
            pending += 1
            self._steps += 1
            text += stops.push(word if run.produced == 1 else f" {word}")
            if stops.matched is not None:
                yield Delta(text, run.usage())
                yield self._end(run, FinishReason.STOP, stop=stops.matched)
                return
            if pending >= options.tokens_per_delta:
                yield Delta(text, run.usage())
                text, pending = "", 0
            if run.cancelled:
                yield self._end(run, FinishReason.CANCELLED)
                return
        text += stops.finish()
        if text or pending:
            yield Delta(text, run.usage())
        reached = run.produced >= prepared.max_output
        yield self._end(run, FinishReason.LENGTH if reached else FinishReason.STOP)

    async def _before(self, run: _Run, number: int, *, is_step: bool = True) -> Finished | None:
        """Wait until token `number` may be generated; the end of the request if it may not.

        `is_step` when the token begins a Delta: only then others get a turn.
        """
        options = self.options
        if options.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until_cancelled(run), options.delay)
        elif is_step:
            await asyncio.sleep(0)
        if number == options.hang_at and not self._released.is_set():
            self._hanging.set()
            await self._first_of(self._released.wait(), self._until_cancelled(run))
        paused_until = time.monotonic() + options.pause_seconds
        while not run.cancelled and run.produced >= run.allowance:
            left = paused_until - time.monotonic()
            if run.last or left <= 0:
                return self._end(run, FinishReason.ALLOWANCE)
            run.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(run.changed.wait(), left)
        if run.cancelled:
            return self._end(run, FinishReason.CANCELLED)
        if number == options.error_at:
            return self._end(run, FinishReason.ERROR, EngineFault("row_failed", "the fake row failed"))
        if number == options.lose_at:
            fault = EngineFault("worker_lost", "the worker was lost", retryable=True)
            return Finished(FinishReason.ERROR, run.reported, fault, exact=False)
        return None

    async def _vectors(self, request: GenerationRequest, run: _Run) -> AsyncGenerator[Event, None]:
        computed = 0
        for index, count in enumerate(self._input_tokens(request)):
            end = await self._before_vector(run, index + 1, computed)
            if end is not None:
                yield end
                return
            computed += count
            self._steps += 1
            yield Vector(index, self._vector(request.inputs[index]))
        yield Finished(FinishReason.STOP, Usage(input=computed))

    async def _before_vector(self, run: _Run, number: int, computed: int) -> Finished | None:
        run.allowance = run.produced + 1  # an embedding generates nothing, so it has no allowance to wait for
        end = await self._before(run, number)
        if end is None:
            return None
        return Finished(end.reason, Usage(input=computed) if end.exact else Usage(), end.error, exact=end.exact)

    def _end(
        self, run: _Run, reason: FinishReason, error: EngineFault | None = None, stop: str | None = None
    ) -> Finished:
        elapsed = (time.monotonic() - run.created) * 1000
        return Finished(reason, run.usage(), error, stop, decode_ms=elapsed)

    def _stop(self, request_id: str) -> None:
        run = self._runs.get(request_id)
        if run is not None:
            run.cancelled = True
            run.changed.set()

    @staticmethod
    async def _until_cancelled(run: _Run) -> None:
        while not run.cancelled:
            run.changed.clear()
            await run.changed.wait()

    @staticmethod
    async def _first_of(*waits: Coroutine[None, None, object]) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _count(self, text: str) -> int:
        return len(text.split()) if self.options.prompt_rule == "words" else -(-len(text) // 4)

    def _input_tokens(self, request: GenerationRequest) -> list[int]:
        return [max(1, self._count(item)) if isinstance(item, str) else len(item) for item in request.inputs]

    def _cached(self, prepared: Prepared) -> int:
        if prepared.request.kind is Kind.EMBEDDING:
            return 0
        return min(int(prepared.prompt_tokens * self.options.cached), prepared.prompt_tokens - 1)

    def _vector(self, item: str | tuple[int, ...]) -> bytes:
        digest = hashlib.blake2b(repr(item).encode(), digest_size=self.options.vector_width).digest()
        values = [byte / 255 + 0.01 for byte in digest]
        norm = sum(value * value for value in values) ** 0.5
        return struct.pack(f"<{len(values)}f", *(value / norm for value in values))
