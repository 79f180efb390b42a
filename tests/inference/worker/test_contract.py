"""A real worker process keeps the engine's contract."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from inference.errors import InvalidRequestError
from inference.types import FinishReason, GenerationRequest, Guidance, GuidanceKind
from tests.inference.engine_contract import EngineContract, Harness, chat, end_of, run, text_of
from tests.inference.worker.processes import WorkerProcess


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(pause_seconds=0.1).start()
    yield process
    process.close()


class WorkerHarness(Harness):
    def request(self, answer: str, **sampling: Any) -> GenerationRequest:
        return chat(answer, **sampling)

    def failing(self) -> GenerationRequest:
        return chat("FAIL")

    def tokens(self, answer: str) -> int:
        return len(answer.encode())


class TestWorkerEngine(EngineContract):
    @pytest.fixture
    async def harness(self, worker: WorkerProcess) -> AsyncIterator[Harness]:
        harness = WorkerHarness()
        harness.engine = await worker.open("echo")
        harness.embedder = await worker.open("embedder")
        yield harness
        await harness.engine.close()
        await harness.embedder.close()


async def test_a_guided_request_is_compiled_and_held_to_its_guidance(worker: WorkerProcess) -> None:
    engine = await worker.open("echo")
    schema = '{"type": "object", "properties": {"n": {"type": "integer", "minimum": 7}}, "required": ["n"]}'
    try:
        for _ in range(2):  # compiled, and then known
            events = await run(engine, chat("hi", guidance=Guidance(GuidanceKind.JSON_SCHEMA, schema)))
            assert json.loads(text_of(events))["n"] >= 7
            assert end_of(events).reason is FinishReason.STOP
        with pytest.raises(InvalidRequestError) as refused:
            await engine.prepare(chat("hi", guidance=Guidance(GuidanceKind.JSON_SCHEMA, '{"not": {}}', param="text")))
        assert (refused.value.code, refused.value.param) == ("guidance_unsupported", "text")
        assert "'not'" in refused.value.message
    finally:
        await engine.close()
