"""The fake engine keeps the engine's contract, and fails where its options say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from inference.clients.fake import FakeEngine, FakeRecord
from inference.engine import EngineSpec
from inference.errors import DrainingError, InvalidRequestError, OverloadedError, UnreachableError
from inference.open import open_engine
from inference.types import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Guidance,
    GuidanceKind,
    Lost,
    Running,
    Started,
)
from tests.inference.engine_contract import EngineContract, Harness, chat, end_of, run, text_of


class FakeHarness(Harness):
    def __init__(self) -> None:
        self.engine = self.embedder = fake(echo=True, bad="FAIL", pause_seconds=0.05)

    def request(self, answer: str, **sampling: Any) -> GenerationRequest:
        return chat(answer, **sampling)

    def failing(self) -> GenerationRequest:
        return chat("FAIL")

    def tokens(self, answer: str) -> int:
        return len(answer.split(" "))


class TestFakeEngine(EngineContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FakeHarness()


def fake(**options: Any) -> FakeEngine:
    return cast("FakeEngine", open_engine(EngineSpec("d", "fake", options=options)))


async def test_deltas_carry_tokens_per_delta_tokens() -> None:
    events = await run(fake(tokens=5, tokens_per_delta=2), chat("hi"))
    assert [event.usage.output for event in events if isinstance(event, Delta)] == [2, 4, 5]
    assert text_of(events) == "w1 w2 w3 w4 w5"


@pytest.mark.parametrize(("answers", "each"), [(2, 1), (4, 3), (16, 5)])
async def test_each_of_several_answers_has_its_own_limit(answers: int, each: int) -> None:
    engine = fake(text="a b c d e f g")
    request = chat("hi", n=answers, max_tokens=each)
    prepared = await engine.prepare(request)
    assert prepared.max_output == answers * each
    events = [event async for event in engine.generate(prepared, prepared.max_output, is_final=True)]
    ended = [(event.index, event.ended) for event in events if isinstance(event, Delta) and event.ended is not None]
    assert ended == [(index, FinishReason.LENGTH) for index in range(answers)]
    assert end_of(events).usage.output == answers * each


async def test_guided_requests_are_refused_unless_the_text_is_meant_for_them() -> None:
    request = chat("hi", guidance=Guidance(GuidanceKind.JSON_OBJECT, param="response_format"))
    with pytest.raises(InvalidRequestError) as refused:
        await fake(text="{}").prepare(request)
    assert (refused.value.code, refused.value.param) == ("guidance_unavailable", "response_format")
    assert text_of(await run(fake(text="{}", guides=True), request)) == "{}"


async def test_the_cached_fraction_is_reported_and_billed_apart() -> None:
    events = await run(fake(cached=0.5), chat("x" * 64))
    finished = end_of(events)
    assert events[0] == Started(10, seed=0)
    assert (finished.usage.input, finished.usage.cache_read) == (10, 10)


async def test_a_lost_worker_reports_the_last_usage_and_the_record_says_lost() -> None:
    engine = fake(tokens=9, lose_at=4, tokens_per_delta=2)
    request = chat("hi")
    finished = end_of(await run(engine, request))
    assert (finished.reason, finished.exact, finished.usage.output) == (FinishReason.ERROR, False, 2)
    assert finished.error is not None
    assert finished.error.retryable
    assert await engine.usage_of(request.id) == Lost()


async def test_a_request_hangs_until_it_is_released() -> None:
    engine = fake(tokens=4, hang_at=3)
    request = chat("hi")
    task = asyncio.create_task(run(engine, request))
    await engine.hanging()
    found = await engine.usage_of(request.id)
    assert isinstance(found, Running)
    assert found.usage.output == 2
    engine.release()
    assert end_of(await task).reason is FinishReason.STOP


async def test_a_hanging_request_can_be_cancelled() -> None:
    engine = fake(tokens=4, hang_at=3)
    request = chat("hi")
    task = asyncio.create_task(run(engine, request))
    await engine.hanging()
    await engine.cancel(request.id)
    finished = end_of(await task)
    assert (finished.reason, finished.usage.output) == (FinishReason.CANCELLED, 2)


@pytest.mark.parametrize(("refusal", "error"), [("overloaded", OverloadedError), ("draining", DrainingError)])
async def test_refusals_come_before_the_first_event(refusal: str, error: type[Exception]) -> None:
    engine = fake(generate_error=refusal)
    with pytest.raises(error):
        await run(engine, chat("hi"))
    engine = fake(prepare_error=refusal)
    with pytest.raises(error):
        await engine.prepare(chat("hi"))


async def test_an_unreachable_engine_raises_from_prepare_and_usage_of() -> None:
    engine = fake(unreachable=True)
    with pytest.raises(UnreachableError):
        await engine.usage_of("x")
    assert not (await engine.health()).ready


async def test_a_drain_lets_requests_end_and_refuses_new_ones() -> None:
    engine = fake(tokens=4, hang_at=2)
    task = asyncio.create_task(run(engine, chat("hi")))
    await engine.hanging()
    draining = asyncio.create_task(engine.drain(30))
    await asyncio.sleep(0)
    with pytest.raises(DrainingError):
        await engine.prepare(chat("more"))
    engine.release()
    await draining
    assert end_of(await task).reason is FinishReason.STOP


async def test_the_drain_deadline_cancels() -> None:
    engine = fake(tokens=4, hang_at=2)
    task = asyncio.create_task(run(engine, chat("hi")))
    await engine.hanging()
    await engine.drain(0.01)
    assert end_of(await task).reason is FinishReason.CANCELLED


async def test_a_shared_record_outlives_an_engine_and_sums_up() -> None:
    record = FakeRecord()
    first, second = fake(record=record, tokens=3), fake(record=record, tokens=4)
    request = chat("hi")
    await run(first, request)
    await run(second, chat("hi"))
    assert isinstance(await second.usage_of(request.id), Finished)
    assert record.usage().output == 7


async def test_a_cancelled_consumer_leaves_an_exact_record() -> None:
    engine = fake(tokens=50, delay=0.001)
    request = chat("hi")
    seen: list[Event] = []

    async def consume() -> None:
        async for event in engine.generate(await engine.prepare(request), 100, True):
            seen.append(event)
            if isinstance(event, Delta) and event.usage.output == 3:
                started.set()

    started = asyncio.Event()
    task = asyncio.create_task(consume())
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    found = await engine.usage_of(request.id)
    assert isinstance(found, Finished)
    assert found.reason is FinishReason.CANCELLED
    assert found.usage.output >= 3


async def test_adapters_are_refused_but_those_that_it_has() -> None:
    engine = fake(adapters=["law"], echo=True)
    assert text_of(await run(engine, replace(chat("hi"), adapter="law"))) == "hi"
    with pytest.raises(InvalidRequestError, match="takes no adapters") as caught:
        await engine.prepare(replace(chat("hi"), adapter="another"))
    assert (caught.value.code, caught.value.param) == ("unknown_adapter", "model")
    engine = fake(adapters=["law"], refused_adapters={"tax": "it is too large"})
    with pytest.raises(InvalidRequestError, match="it is too large") as caught:
        await engine.prepare(replace(chat("hi"), adapter="tax"))
    assert (caught.value.code, engine.info.adapters) == ("adapter_refused", {"law": "", "tax": "it is too large"})
