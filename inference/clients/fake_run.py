"""One request that a fake engine generates: its tokens or vectors, its pauses, and how it ends."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import struct
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice

from inference.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    LimitedError,
    OverloadedError,
    UnpreparedError,
    UnreachableError,
)
from inference.messages import ToolResult
from inference.text.answer import AnswerParser
from inference.text.chats import Chats
from inference.text.stops import StopMatcher
from inference.types import (
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Kind,
    Prepared,
    Told,
    Usage,
    Vector,
)

REFUSALS: dict[str, type[EngineError]] = {
    "invalid": InvalidRequestError,
    "overloaded": OverloadedError,
    "limited": LimitedError,
    "draining": DrainingError,
    "unprepared": UnpreparedError,
    "unreachable": UnreachableError,
}


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """The keys of `EngineSpec.options`. Token numbers count the output from 1.

    `text` is the answer (one token per word) or, when empty, `tokens` numbered words; with `ignore_eos` it repeats.
    With a `script` it is the one whose number is that of the tools' results in the messages, the last where there are
    more: `<tool_call>` opens a call of a function that the request has, and `<think>` a thought if it `thinks`.
    Guided requests are refused, unless it `guides`: then `text` has to be what they permit, which it doesn't check.
    With `echo` the answer is the last message, and a message that begins with `bad` fails its row.
    `adapters` are those that requests may name; the answer is the same with them. `refused_adapters` have the reason.
    `images` is ``none``, ``data`` or ``urls``; an image takes no tokens.
    `cached` is the fraction of a prompt that comes from the cache. `prompt_rule` is ``characters`` (one token per
    four) or ``words``. `prepare_error` and `generate_error` are keys of `REFUSALS`. `error_at`, `lose_at` and
    `hang_at` name the token before which a request fails, loses its worker, or waits for `FakeEngine.release`;
    0 is never. With `unreachable`, `prepare` and `usage_of` raise `UnreachableError`. Times are in seconds;
    `delay` comes before each token.
    """

    model: str = "fake"
    kinds: Sequence[str] = ("chat", "embedding", "score", "classification")
    images: str = "none"
    adapters: Sequence[str] = ()
    refused_adapters: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    script: Sequence[str] = ()
    thinks: bool = False
    echo: bool = False
    bad: str = ""
    guides: bool = False
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

    def count(self, text: str) -> int:
        """The number of tokens of `text` by the `prompt_rule`."""
        return len(text.split()) if self.prompt_rule == "words" else -(-len(text) // 4)

    def pieces(self, text: str) -> list[str]:
        """The tokens of `text` by the `prompt_rule`."""
        return text.split() if self.prompt_rule == "words" else [text[at : at + 4] for at in range(0, len(text), 4)]


@dataclass(slots=True)
class FakeState:
    """State that all requests of one fake engine share: its options, its steps, and the events of `hang_at`."""

    options: FakeOptions
    steps: int = 0
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


class FakeRun:
    """One request of a fake engine. `reported` is the usage of the last event that was consumed."""

    def __init__(self, state: FakeState, prepared: Prepared, allowance: int, *, is_final: bool) -> None:
        resumed = prepared.request.resumed
        self.reported = Usage() if resumed is None else resumed.usage
        self.cached = _cached(state.options, prepared) if resumed is None else resumed.usage.cache_read
        self._resumed = 0 if resumed is None else len(resumed.tokens)
        self._state = state
        self._prepared = prepared
        self._allowance = allowance
        self._is_final = is_final
        self._produced = self._resumed
        self._is_cancelled = False
        self._changed = asyncio.Event()
        self._created = time.monotonic()
        self._parser = _parser(state.options, prepared.request)
        self._thought = 0  # tokens of reasoning

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        prompt, output = self._prepared.prompt_tokens, self._produced - self._thought
        return Usage(input=prompt - self.cached, cache_read=self.cached, output=output, reasoning=self._thought)

    def extend(self, allowance: int, *, is_final: bool) -> None:
        """Raise the allowance."""
        self._allowance = max(self._allowance, allowance)
        self._is_final = self._is_final or is_final
        self._changed.set()

    def cancel(self) -> None:
        """End the request before its next token."""
        self._is_cancelled = True
        self._changed.set()

    def end(self, reason: FinishReason, error: EngineFault | None = None, stop: str | None = None) -> Finished:
        """Return the last event of a request that ends now."""
        elapsed = (time.monotonic() - self._created) * 1000
        return Finished(reason, self.usage, error, stop, decode_ms=elapsed)

    def events(self) -> AsyncGenerator[Event, None]:
        """Yield every event after `Started`."""
        if self._prepared.request.kind is not Kind.CHAT:
            return self._vectors()
        if self._prepared.request.sampling.answers > 1:
            return self._answers()
        return self._tokens() if self._parser is None else self._parsed(self._parser)

    async def _parsed(self, parser: AnswerParser) -> AsyncGenerator[Event, None]:
        """Generate an answer that is parsed; a Delta that begins or ends in a thought counts as reasoning."""
        async with aclosing(self._tokens()) as events:
            async for event in events:
                thinks = parser.is_thinking
                if isinstance(event, Delta):
                    parser.push(event.text)
                    self._thought += len(event.tokens) if thinks or parser.is_thinking else 0
                if isinstance(event, Finished) or parser.is_over:
                    parser.finish(is_cut=isinstance(event, Finished) and event.reason is not FinishReason.STOP)
                tokens = event.tokens if isinstance(event, Delta) else ()
                for told in parser.take() or ([Told()] if tokens else []):
                    yield Delta(told.text, self.usage, tokens, reasoning=told.reasoning, calls=told.calls)
                    tokens = ()
                if parser.is_over:
                    yield self.end(FinishReason.STOP)
                    return
                if isinstance(event, Finished):
                    yield event

    async def _answers(self) -> AsyncGenerator[Event, None]:
        """Generate several answers one after the other, each with its number before it."""
        prepared = self._prepared
        count, words = prepared.request.sampling.n, self._state.options.text.split(" ")
        for index in range(count):
            for number, word in enumerate((f"{index}:", *words)):
                if (end := await self._before(self._produced + 1)) is not None:
                    yield end
                    return
                self._produced += 1
                is_over = self._produced * count >= prepared.max_output * (index + 1)
                ended = FinishReason.LENGTH if is_over else FinishReason.STOP if number == len(words) else None
                yield Delta(f" {word}" if number else word, self.usage, index=index, ended=ended)
                if ended is not None:
                    break
        yield self.end(FinishReason.STOP)

    async def _tokens(self) -> AsyncGenerator[Event, None]:
        options, prepared = self._state.options, self._prepared
        sampling = prepared.request.sampling
        content = _asked(prepared.request)
        answer = content if options.echo else _scripted(options, prepared.request) or options.text
        words = answer.split(" ") if answer else _numbered(options.tokens)
        endless = islice(cycle(words), prepared.max_output)
        output = iter(endless if sampling.ignore_eos else islice(words, prepared.max_output))
        stops = StopMatcher(sampling.stop)
        self._skip(stops.push(" ".join(islice(output, self._resumed))))
        text, pending = "", 0
        for word in output:
            if self._produced >= self._allowance and pending:
                yield self._delta(text, pending)
                text, pending = "", 0
            end = await self._before(self._produced + 1, is_step=not pending)
            if end is None and options.bad and content.startswith(options.bad):
                end = self.end(FinishReason.ERROR, EngineFault("row_failed", "the fake row failed"))
            if end is not None:
                if text and end.exact:
                    yield self._delta(text, pending)
                yield end
                return
            self._produced += 1
            pending += 1
            self._state.steps += 1
            text += stops.push(word if self._produced == 1 else f" {word}")
            if stops.matched is not None:
                yield self._delta(text, pending)
                yield self.end(FinishReason.STOP, stop=stops.matched)
                return
            if pending >= options.tokens_per_delta:
                yield self._delta(text, pending)
                text, pending = "", 0
            if self._is_cancelled:
                yield self.end(FinishReason.CANCELLED)
                return
        text += stops.finish()
        if text or pending:
            yield self._delta(text, pending)
        reached = self._produced >= prepared.max_output
        yield self.end(FinishReason.LENGTH if reached else FinishReason.STOP)

    def _skip(self, text: str) -> None:
        """Read what another engine told."""
        if self._parser is not None:
            self._parser.push(text)
            self._parser.take()

    def _delta(self, text: str, count: int) -> Delta:
        """Return the Delta of the last `count` tokens: the id of each is its number."""
        return Delta(text, self.usage, tuple(range(self._produced - count + 1, self._produced + 1)))

    async def _vectors(self) -> AsyncGenerator[Event, None]:
        options, request = self._state.options, self._prepared.request
        computed = 0
        for index, count in enumerate(input_tokens(options, request)):
            self._allowance = self._produced + 1  # an embedding generates nothing, so it waits for no allowance
            end = await self._before(index + 1)
            if end is not None:
                yield Finished(end.reason, Usage(input=computed) if end.exact else Usage(), end.error, exact=end.exact)
                return
            computed += count
            self._state.steps += 1
            if request.kind is Kind.SCORE:
                query = request.queries[index % len(request.queries)]
                yield Vector(index, struct.pack("<f", _score(query, str(request.inputs[index]))))
            elif request.kind is Kind.CLASSIFICATION:
                yield _classified(index, str(request.inputs[index]), request.labels or ("good", "bad"))
            else:
                yield Vector(index, _vector(request.inputs[index], options.vector_width))
        yield Finished(FinishReason.STOP, Usage(input=computed))

    async def _before(self, number: int, *, is_step: bool = True) -> Finished | None:
        """Wait until token `number` may be generated; return the end of the request if it may not.

        Other tasks run only before a token with `is_step`, the first of its Delta.
        """
        state, options = self._state, self._state.options
        if options.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until_cancelled(), options.delay)
        elif is_step:
            await asyncio.sleep(0)
        if number == options.hang_at and not state.released.is_set():
            state.hanging.set()
            await _first_of(state.released.wait(), self._until_cancelled())
        paused_until = time.monotonic() + options.pause_seconds
        while not self._is_cancelled and self._produced >= self._allowance:
            remaining = paused_until - time.monotonic()
            if self._is_final or remaining <= 0:
                return self.end(FinishReason.ALLOWANCE)
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), remaining)
        if self._is_cancelled:
            return self.end(FinishReason.CANCELLED)
        if number == options.error_at:
            return self.end(FinishReason.ERROR, EngineFault("row_failed", "the fake row failed"))
        if number == options.lose_at:
            fault = EngineFault("worker_lost", "the worker was lost", retryable=True)
            return Finished(FinishReason.ERROR, self.reported, fault, exact=False)
        return None

    async def _until_cancelled(self) -> None:
        while not self._is_cancelled:
            self._changed.clear()
            await self._changed.wait()


def _parser(options: FakeOptions, request: GenerationRequest) -> AnswerParser | None:
    chats = Chats.of("", {"reasoning": "<think> </think>" if options.thinks else "off"})
    parsing = chats.parsing(request, "")
    return AnswerParser(parsing, request.id) if parsing is not None else None


def _scripted(options: FakeOptions, request: GenerationRequest) -> str:
    """The answer of the script whose turn it is; empty without one."""
    results = sum(isinstance(part, ToolResult) for message in request.messages for part in message.parts)
    return options.script[min(results, len(options.script) - 1)] if options.script else ""


def _asked(request: GenerationRequest) -> str:
    """Return the text to echo: the last message, or the prompt."""
    if request.prompt is not None:
        return request.prompt if isinstance(request.prompt, str) else " ".join(map(str, request.prompt))
    return "\n".join(request.messages[-1].texts)


def input_tokens(options: FakeOptions, request: GenerationRequest) -> list[int]:
    """The tokens of each input of an embedding request, of each pair of one for scores, or of a classification, whose
    first one has those of its labels.
    """
    counts = [max(1, options.count(item)) if isinstance(item, str) else len(item) for item in request.inputs]
    counts[:1] = [count + sum(map(options.count, request.labels)) for count in counts[:1]]
    queries = [options.count(query) for query in request.queries] or [0]
    return [count + queries[number % len(queries)] for number, count in enumerate(counts)]


@functools.cache
def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"w{number}" for number in range(1, count + 1))


def _cached(options: FakeOptions, prepared: Prepared) -> int:
    if prepared.request.kind is not Kind.CHAT:
        return 0
    return min(int(prepared.prompt_tokens * options.cached), prepared.prompt_tokens - 1)


def _vector(item: str | tuple[int, ...], width: int) -> bytes:
    digest = hashlib.blake2b(repr(item).encode(), digest_size=width).digest()
    values = [byte / 255 + 0.01 for byte in digest]
    norm = sum(value * value for value in values) ** 0.5
    return struct.pack(f"<{len(values)}f", *(value / norm for value in values))


def _classified(index: int, text: str, labels: tuple[str, ...]) -> Vector:
    """Return probabilities by the words that a text shares with each label; the rest is that none is true."""
    shared = [_score(label, text) / len(labels) for label in labels]
    return Vector(index, struct.pack(f"<{len(labels) + 1}f", *shared, 1.0 - sum(shared)), (*labels, "other"))


def _score(query: str, text: str) -> float:
    """The part of the query's words that the text has."""
    words = set(query.lower().split())
    return len(words & set(text.lower().split())) / max(1, len(words))


async def _first_of(*waits: Coroutine[None, None, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
