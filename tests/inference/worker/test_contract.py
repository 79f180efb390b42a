"""A real worker process keeps the engine's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from inference.types import GenerationRequest
from tests.inference.engine_contract import EngineContract, Harness, chat
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
