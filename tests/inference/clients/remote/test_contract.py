"""The remote engine keeps the engine's contract, but for what a foreign server can't do."""

from __future__ import annotations

from typing import Any

import pytest

from inference.types import GenerationRequest, Lost
from tests.inference.engine_contract import EngineContract, Harness, chat


class RemoteHarness(Harness):
    def __init__(self, engine) -> None:
        self.engine = self.embedder = engine

    def request(self, answer: str, **sampling: Any) -> GenerationRequest:
        return chat(answer, **sampling)

    def failing(self) -> GenerationRequest:
        return chat("then FAIL")  # at its first token it would be as if nothing had run

    def tokens(self, answer: str) -> int:
        return len(answer.split(" "))


class TestRemoteEngine(EngineContract):
    """A running request can't be extended: what would wake a paused one has nothing to wake. Nor can one be resumed: a
    foreign server says no token ids.
    """

    test_an_extension_wakes_a_paused_request = None
    test_a_request_resumed_behind_any_token_goes_on_as_it_would_have = None
    test_an_allowance_counts_what_was_generated_before_resuming = None

    @pytest.fixture
    async def harness(self, remote) -> Harness:
        # Of a stream that is cut all is known at servers alone that tell in every event what was cached.
        engine, _ = await remote("llamacpp", options={"kinds": ["chat", "embedding"]})
        return RemoteHarness(engine)

    async def test_what_another_process_may_have_run_is_lost(self, harness) -> None:
        """Unlike a worker's, the engine's memory begins with this process: an id that it never saw may have run."""
        assert await harness.engine.usage_of(chat("x").id) == Lost()

    async def test_it_says_that_it_cannot_extend(self, harness) -> None:
        assert harness.engine.info is not None
        assert not harness.engine.info.can_extend
