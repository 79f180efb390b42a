"""What every engine promises, as one suite: a subclass gives it a `harness` fixture."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest

from inference.engine import Engine
from inference.errors import InvalidRequestError, UnpreparedError
from inference.messages import Message
from inference.types import (
    Delta,
    Event,
    Evidence,
    Finished,
    FinishReason,
    GenerationRequest,
    Kind,
    NothingRan,
    Prepared,
    Resumed,
    Running,
    SamplingParams,
    Started,
    Usage,
    Vector,
)


class Harness(ABC):
    """An engine that answers with its last message, whose pauses are short."""

    engine: Engine
    embedder: Engine

    @abstractmethod
    def request(self, answer: str, **sampling: Any) -> GenerationRequest:
        """A request that is answered with `answer`."""

    @abstractmethod
    def failing(self) -> GenerationRequest:
        """A request whose row fails."""

    @abstractmethod
    def tokens(self, answer: str) -> int:
        """How many tokens `answer` has, without what ends it."""


def chat(content: str, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        id=uuid.uuid4().hex,
        tenant="tenant",
        domain=uuid.uuid4().hex,
        messages=(Message("user", (content,)),),
        sampling=SamplingParams(**sampling),
    )


def embedding(*inputs: str | tuple[int, ...], **fields: Any) -> GenerationRequest:
    return GenerationRequest(
        id=uuid.uuid4().hex, tenant="tenant", domain="d", kind=Kind.EMBEDDING, inputs=inputs, **fields
    )


async def collect(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream]


async def run(
    engine: Engine, request: GenerationRequest, allowance: int = 10_000, is_final: bool = True
) -> list[Event]:
    return await collect(engine.generate(await engine.prepare(request), allowance, is_final))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def end_of(events: list[Event]) -> Finished:
    """The one Finished, after checking the order and the usages of all events."""
    assert [index for index, event in enumerate(events) if isinstance(event, Finished)] == [len(events) - 1]
    assert [index for index, event in enumerate(events) if isinstance(event, Started)] in ([0], [])
    finished = cast("Finished", events[-1])
    completions = [event.usage.completion for event in events if isinstance(event, Delta)]
    assert completions == sorted(completions)
    assert all(count <= finished.usage.completion for count in completions)
    if finished.usage.prompt:
        assert isinstance(events[0], Started)
    return finished


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 120) -> None:
    """Return when `condition` holds, for changes in another process that sends no event."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def evidence(engine: Engine, request_id: str) -> Evidence:
    """Return the evidence about the request once it isn't running."""

    async def is_over() -> bool:
        return not isinstance(await engine.usage_of(request_id), Running)

    await until(is_over)
    return await engine.usage_of(request_id)


def same(finished: Finished) -> Finished:
    """`finished` without its times."""
    return replace(finished, queued_ms=0.0, prefill_ms=0.0, decode_ms=0.0, gap_ms=0.0, gap_p99_ms=0.0)


class EngineContract:
    """The suite."""

    async def test_an_answer_ends_with_one_finished_that_the_record_repeats(self, harness: Harness) -> None:
        request = harness.request("one two three")
        prepared = await harness.engine.prepare(request)
        events = await collect(harness.engine.generate(prepared, 10_000, True))
        finished = end_of(events)
        assert text_of(events) == "one two three"
        assert finished.reason is FinishReason.STOP
        assert finished.exact
        assert finished.usage.prompt == prepared.prompt_tokens
        assert finished.usage.completion >= harness.tokens("one two three")
        found = await evidence(harness.engine, request.id)
        assert isinstance(found, Finished)
        assert same(found) == same(finished)

    async def test_a_request_resumed_behind_any_token_goes_on_as_it_would_have(self, harness: Harness) -> None:
        """With its stop strings and its usage; what is computed again is not counted."""
        request = harness.request("one two three four STOP five", stop=("STOP", "r ST X"), max_tokens=200, seed=7)
        events = await run(harness.engine, request)
        started, finished = events[0], end_of(events)
        assert isinstance(started, Started)
        deltas = [event for event in events if isinstance(event, Delta)]
        for cut in range(1, len(deltas)):
            before = deltas[:cut]
            tokens = tuple(token for delta in before for token in delta.tokens)
            assert len(tokens) == before[-1].usage.completion
            assert started.seed is not None
            resumed = Resumed(tokens, before[-1].usage, started.seed)
            rest = await run(harness.engine, replace(request, id=uuid.uuid4().hex, resumed=resumed))
            assert text_of([*before]) + text_of(rest) == text_of(events) == "one two three four "
            assert (end_of(rest).reason, end_of(rest).stop) == (finished.reason, finished.stop)
            assert end_of(rest).usage == finished.usage

    async def test_an_allowance_counts_what_was_generated_before_resuming(self, harness: Harness) -> None:
        request = harness.request("a b c d e f g h")
        events = await run(harness.engine, request)
        started = events[0]
        assert isinstance(started, Started)
        deltas = [event for event in events if isinstance(event, Delta)][:3]
        tokens = tuple(token for delta in deltas for token in delta.tokens)
        resumed = Resumed(tokens, deltas[-1].usage, started.seed or 0)
        again = replace(request, id=uuid.uuid4().hex, resumed=resumed)
        finished = end_of(await run(harness.engine, again, allowance=len(tokens) + 1))
        assert (finished.reason, finished.usage.completion) == (FinishReason.ALLOWANCE, len(tokens) + 1)
        with pytest.raises(InvalidRequestError):
            await run(harness.engine, replace(again, id=uuid.uuid4().hex), allowance=len(tokens))

    async def test_max_tokens_ends_with_length_and_never_pauses(self, harness: Harness) -> None:
        events = await run(harness.engine, harness.request("a b c d", max_tokens=3), allowance=3, is_final=False)
        finished = end_of(events)
        assert (finished.reason, finished.usage.completion) == (FinishReason.LENGTH, 3)

    @pytest.mark.parametrize("allowance", [1, 2, 5])
    async def test_the_last_allowance_ends_at_its_token(self, harness: Harness, allowance: int) -> None:
        events = await run(harness.engine, harness.request("a b c d", ignore_eos=True), allowance, is_final=True)
        finished = end_of(events)
        assert (finished.reason, finished.usage.completion) == (FinishReason.ALLOWANCE, allowance)

    async def test_a_pause_without_an_extension_ends_at_the_allowance(self, harness: Harness) -> None:
        events = await run(harness.engine, harness.request("a b c d", ignore_eos=True), 2, is_final=False)
        finished = end_of(events)
        assert (finished.reason, finished.usage.completion) == (FinishReason.ALLOWANCE, 2)

    async def test_an_extension_wakes_a_paused_request(self, harness: Harness) -> None:
        request = harness.request("a b c d", max_tokens=40, ignore_eos=True)
        prepared = await harness.engine.prepare(request)
        events: list[Event] = []
        async for event in harness.engine.generate(prepared, 2, False):
            events.append(event)
            if isinstance(event, Delta) and event.usage.completion in {2, 6}:
                for _ in range(2):  # a repeat is harmless
                    await harness.engine.extend(request.id, event.usage.completion + 4, False)
                await harness.engine.extend(request.id, 1, False)  # and so is less than before
            if isinstance(event, Delta) and event.usage.completion == 10:
                await harness.engine.extend(request.id, 13, True)
        finished = end_of(events)
        assert (finished.reason, finished.usage.completion) == (FinishReason.ALLOWANCE, 13)

    async def test_the_last_word_ends_a_paused_request(self, harness: Harness) -> None:
        request = harness.request("a b c d", ignore_eos=True)
        prepared = await harness.engine.prepare(request)
        events: list[Event] = []
        async for event in harness.engine.generate(prepared, 2, False):
            events.append(event)
            if isinstance(event, Delta) and event.usage.completion == 2:
                await harness.engine.extend(request.id, 2, True)
        assert end_of(events).reason is FinishReason.ALLOWANCE

    @pytest.mark.parametrize("tokens", range(1, 7))
    async def test_a_cancel_after_any_token_brings_one_finished(self, harness: Harness, tokens: int) -> None:
        request = harness.request("a b c d", ignore_eos=True)
        prepared = await harness.engine.prepare(request)
        events: list[Event] = []
        async for event in harness.engine.generate(prepared, 10_000, True):
            events.append(event)
            if isinstance(event, Delta) and event.usage.completion >= tokens:
                await harness.engine.cancel(request.id)
                await harness.engine.cancel(request.id)
        finished = end_of(events)
        assert finished.reason is FinishReason.CANCELLED, finished
        assert finished.usage.completion >= tokens
        assert same(cast("Finished", await evidence(harness.engine, request.id))) == same(finished)

    async def test_a_cancel_before_the_first_token_brings_one_finished(self, harness: Harness) -> None:
        request = harness.request("a b c d", ignore_eos=True)
        prepared = await harness.engine.prepare(request)
        task = asyncio.create_task(collect(harness.engine.generate(prepared, 10_000, True)))
        await asyncio.sleep(0)
        await harness.engine.cancel(request.id)
        assert end_of(await task).reason is FinishReason.CANCELLED

    async def test_a_cancelled_prompt_is_forgotten(self, harness: Harness) -> None:
        request = harness.request("a")
        prepared = await harness.engine.prepare(request)
        await harness.engine.cancel(request.id)
        with pytest.raises(UnpreparedError) as caught:
            await collect(harness.engine.generate(prepared, 10, True))
        assert caught.value.code == "unprepared"
        assert text_of(await run(harness.engine, request)) == "a"  # it never ran, so it may

    async def test_a_prompt_is_told_in_tokens_and_back(self, harness: Harness) -> None:
        request = replace(harness.request(""), messages=(), prompt="ten small words")
        tokens = await harness.engine.tokenize(request, with_texts=True)
        assert tokens.ids
        assert len(tokens.texts) in {0, len(tokens.ids)}
        assert await harness.engine.detokenize(replace(request, prompt=tokens.ids)) == "ten small words"
        again = await harness.engine.tokenize(request, special=False)
        assert again.texts == ()
        assert len(again.ids) <= len(tokens.ids)
        with pytest.raises(UnpreparedError):  # nothing of it is kept
            await collect(harness.engine.generate(Prepared(request, len(tokens.ids), 10), 10, True))

    async def test_a_chat_has_the_tokens_that_it_is_held_for(self, harness: Harness) -> None:
        request = harness.request("ten small words")
        prepared = await harness.engine.prepare(request)
        assert len((await harness.engine.tokenize(request)).ids) == prepared.prompt_tokens

    async def test_closing_the_iterator_cancels(self, harness: Harness) -> None:
        request = harness.request("a b c d", ignore_eos=True)
        prepared = await harness.engine.prepare(request)
        async with aclosing(cast("Any", harness.engine.generate(prepared, 10_000, True))) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        found = await evidence(harness.engine, request.id)
        assert isinstance(found, Finished)
        assert found.reason is FinishReason.CANCELLED
        assert found.usage.completion >= 1

    async def test_what_nobody_knows_never_ran_and_never_will(self, harness: Harness) -> None:
        request = harness.request("a")
        prepared = await harness.engine.prepare(request)
        assert await harness.engine.usage_of(request.id) == NothingRan()
        with pytest.raises(UnpreparedError) as caught:
            await collect(harness.engine.generate(prepared, 10, True))
        assert caught.value.code == "request_closed"
        assert await harness.engine.usage_of(request.id) == NothingRan()

    async def test_a_prompt_that_nobody_knows_is_unprepared(self, harness: Harness) -> None:
        request = harness.request("a")
        with pytest.raises(UnpreparedError) as caught:
            await collect(harness.engine.generate(Prepared(request, 10, 10), 10, True))
        assert caught.value.code == "unprepared"
        assert text_of(await run(harness.engine, request)) == "a"  # nothing was declared: it may be prepared and run

    async def test_an_id_runs_once(self, harness: Harness) -> None:
        request = harness.request("a b c d", ignore_eos=True)
        stream = cast("Any", harness.engine.generate(await harness.engine.prepare(request), 10_000, True))
        async with aclosing(stream) as events:
            await anext(events)
            again = await harness.engine.prepare(request)
            with pytest.raises(InvalidRequestError):
                await collect(harness.engine.generate(again, 10, True))
        ended = await evidence(harness.engine, request.id)
        again = await harness.engine.prepare(request)
        with pytest.raises(UnpreparedError) as caught:
            await collect(harness.engine.generate(again, 10, True))
        assert caught.value.code == "request_closed"
        assert await harness.engine.usage_of(request.id) == ended

    async def test_calls_for_unknown_requests_are_harmless(self, harness: Harness) -> None:
        await harness.engine.cancel(uuid.uuid4().hex)
        await harness.engine.extend(uuid.uuid4().hex, 10, True)
        assert text_of(await run(harness.engine, harness.request("still here"))) == "still here"

    async def test_a_failing_row_ends_alone(self, harness: Harness) -> None:
        bad = asyncio.create_task(run(harness.engine, harness.failing()))
        good = [asyncio.create_task(run(harness.engine, harness.request("fine"))) for _ in range(3)]
        finished = end_of(await bad)
        assert finished.reason is FinishReason.ERROR
        assert finished.error is not None
        assert finished.error.code == "row_failed"
        for task in good:
            assert end_of(await task).reason is FinishReason.STOP

    async def test_many_at_once_get_their_own_answers(self, harness: Harness) -> None:
        answers = [f"answer {number} of many" for number in range(12)]
        results = await asyncio.gather(*(run(harness.engine, harness.request(answer)) for answer in answers))
        assert [text_of(events) for events in results] == answers
        assert all(end_of(events).reason is FinishReason.STOP for events in results)

    @pytest.mark.parametrize(
        ("answer", "stop", "text", "matched"),
        [
            ("one STOP two", ("STOP",), "one ", "STOP"),
            ("one two three", ("three", "o t"), "one tw", "o t"),
            ("one two", ("two three",), "one two", None),
            ("a b c", ("b c", "c"), "a ", "b c"),
            ("x STO y", ("STOP",), "x STO y", None),
        ],
    )
    async def test_stop_strings(
        self, harness: Harness, answer: str, stop: tuple[str, ...], text: str, matched: str | None
    ) -> None:
        events = await run(harness.engine, harness.request(answer, stop=stop))
        finished = end_of(events)
        assert text_of(events) == text
        assert (finished.reason, finished.stop) == (FinishReason.STOP, matched)

    async def test_a_prompt_longer_than_the_context_is_refused(self, harness: Harness) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            await harness.engine.prepare(chat("many words " * 10_000))
        assert caught.value.code == "context_length_exceeded"

    async def test_embeddings_bring_one_vector_for_each_input(self, harness: Harness) -> None:
        request = embedding("one", "two", "three")
        prepared = await harness.embedder.prepare(request)
        events = await collect(harness.embedder.generate(prepared, 0, True))
        finished = end_of(events)
        vectors = [event for event in events if isinstance(event, Vector)]
        assert sorted(vector.index for vector in vectors) == [0, 1, 2]
        info = harness.embedder.info
        assert info is not None
        assert {len(vector.data) for vector in vectors} == {4 * info.vector_width}
        assert finished.reason is FinishReason.STOP
        assert finished.usage == Usage(input=prepared.prompt_tokens)
        assert same(cast("Finished", await evidence(harness.embedder, request.id))) == same(finished)

    async def test_health_says_ready(self, harness: Harness) -> None:
        assert (await harness.engine.health()).ready
