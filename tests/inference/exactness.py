"""Random requests in every condition that an engine may compute them in, each held to what it answers alone.

`benchmarks/engine/exactness.py` runs thousands of them and prints a table, `test_exactness.py` a few.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.execution.backend import LoadedModel
from inference.execution.runner import TorchRunner
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import PositionLogprobs
from tests.inference.random_requests import Told, alone, random_prompt, some_grammars

BLOCKS = 24  # of the small pool: about two of the longest requests


@dataclass(frozen=True)
class Condition:
    """How the requests are run: `settings` of the engine, all at once or `waves` one after the other."""

    settings: dict[str, Any]
    blocks: int | None = None
    overlaps: bool = False
    waves: int = 1
    at_once: int = 64


ALONE = Condition({"max_step_tokens": 512, "prefill_chunk": 512, "prefix_cache": False})
CONDITIONS = {
    "batched": Condition({"prefix_cache": False}),
    "in chunks": Condition({"prefix_cache": False, "max_step_tokens": 21, "prefill_chunk": 5, "max_rows": 9}),
    "preempted": Condition({"prefix_cache": False}, blocks=BLOCKS),
    "from cache": Condition({}, waves=2),
    "with drafts": Condition({"prefix_cache": False, "speculation": 8, "max_rows": 2}),
    "overlapped": Condition({"prefix_cache": False}, overlaps=True),
    "all of it": Condition(
        {"max_step_tokens": 40, "prefill_chunk": 16, "speculation": 3, "max_rows": 5}, BLOCKS, waves=2
    ),
    "all of it, overlapped": Condition(
        {"max_step_tokens": 40, "prefill_chunk": 16, "max_rows": 9}, BLOCKS, overlaps=True, waves=2
    ),
}


@dataclass
class Difference:
    """How many requests of a condition were answered otherwise than alone.

    `tokens` counts those with other tokens, `bits` those with the same tokens and other log-probabilities; `largest` is
    by how much a log-probability of the same token behind the same text differed at most.
    """

    requests: int = 0
    tokens: int = 0
    bits: int = 0
    largest: float = 0.0

    def add(self, alone: Told, other: Told) -> None:
        """Compare what one request was told."""
        self.requests += 1
        if alone.outcome == other.outcome:
            return
        differs = alone.finished is None or other.finished is None
        pairs = [(alone.prompt_logprobs, other.prompt_logprobs)]
        for index in alone.answers.keys() | other.answers.keys():
            if index not in alone.answers or index not in other.answers:
                differs = True
                continue
            one, two = alone.answers[index], other.answers[index]
            differs = differs or (one.tokens, one.text, one.ended) != (two.tokens, two.text, two.ended)
            pairs.append((one.logprobs, two.logprobs))
        self.tokens += differs
        self.bits += not differs
        self.largest = max([self.largest, *(_distance(*pair) for pair in pairs)])

    def __str__(self) -> str:
        if not self.tokens and not self.bits:
            return "equal"
        return f"{self.tokens} other tokens, {self.bits} other bits, ≤ {self.largest:.1g}"


def _distance(one: list[PositionLogprobs], two: list[PositionLogprobs]) -> float:
    """By how much the log-probabilities differ, up to the first other token."""
    largest = 0.0
    for a, b in zip(one, two, strict=False):
        if a.chosen.token != b.chosen.token:
            break
        largest = max(largest, abs(a.chosen.logprob - b.chosen.logprob))
    return largest


class Exactness:
    """Runs `requests` random requests of `seed` on a loaded model."""

    def __init__(self, loaded: LoadedModel, requests: int, seed: int) -> None:
        self.loaded = loaded
        self.preemptions = self.accepted = self.cached = 0
        rng = random.Random(seed)
        vocabulary = min(loaded.vocab_size, 256)  # what the tokenizer has
        shared = [rng.randrange(3, vocabulary) for _ in range(40)]
        grammars = some_grammars(loaded.vocab_size)
        self.prompts = [
            random_prompt(rng, f"r{number}", vocabulary, (BLOCKS - 2) * loaded.block_size, shared, grammars=grammars)
            for number in range(requests)
        ]
        engine = self._engine(ALONE)
        self.alone = {prompt.request.id: alone(engine, prompt) for prompt in self.prompts}
        for told in self.alone.values():
            assert told.finished is not None
            assert told.finished.error is None, told.finished

    def compare(self, condition: Condition) -> Difference:
        """Return how the requests of `condition` differ from those that were alone."""
        difference = Difference()
        engine = self._engine(condition)
        for wave in range(condition.waves):
            for first in range(0, len(self.prompts), condition.at_once):
                told = self._together(engine, self.prompts[first : first + condition.at_once])
                for name, each in told.items():
                    if wave == condition.waves - 1:
                        difference.add(self.alone[name], each)
        (scheduler,) = engine.schedulers
        self.preemptions += sum(scheduler.stats().work.preemptions.values())
        self.cached += scheduler.stats().work.cached_tokens
        return difference

    def _together(self, engine: LocalEngine, prompts: list[Prompt]) -> dict[str, Told]:
        told = {prompt.request.id: Told() for prompt in prompts}
        for prompt in prompts:
            engine.submit(prompt)
        (scheduler,) = engine.schedulers
        assert isinstance(scheduler, Scheduler)
        while engine.unfinished:
            for output in engine.step():
                told[output.request_id].add(output)
                self.accepted += max(0, len(output.tokens) - 1)
            scheduler.check()
        return told

    def _engine(self, condition: Condition) -> LocalEngine:
        loaded = replace(self.loaded, kv_blocks=condition.blocks or self.loaded.kv_blocks)
        if condition.overlaps:
            loaded = replace(loaded, runner=overlapping(loaded.runner))
        config = EngineConfig(
            "exactness",
            "-",
            block_size=loaded.block_size,
            max_waiting=1000,
            max_waiting_per_tenant=1000,
            **condition.settings,
        )
        return LocalEngine(config, loaded, ByteTokenizer(), secret=b"exactness", clock=lambda: 0.0)


def overlapping(runner: Any) -> TorchRunner:
    """Return a runner of the same model that computes a step while the next is planned."""
    attention = runner._packer.attention
    return TorchRunner(
        causal=(runner._causal, attention),
        limit=runner._limit,
        max_tokens=runner._packer._max_tokens,
        overlaps=True,
        passes=runner._sampler._passes,
    )
