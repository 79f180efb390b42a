"""A model's output with drafts is its output without, whatever else a request asks for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.core.step import RowResult, StepPlan
from inference.execution.backend import LoadedModel, Pending, Runner
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import Finished, GenerationRequest, SamplingParams
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny("llama", tmp_path_factory.mktemp("speculation"))
    return load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=2048), threads=1)


class Counting:
    """A runner that counts the tokens which rows gave behind their first: drafts that were right."""

    overlaps = False

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.accepted = 0

    def launch(self, plan: StepPlan) -> Pending:
        pending = self.inner.launch(plan)
        for row in pending.wait().rows:
            assert isinstance(row, RowResult)
            self.accepted += max(0, len(row.tokens) - 1)
        return pending


def outcome(loaded: LoadedModel, requests: list[Prompt], speculation: int) -> tuple[dict[str, Any], int]:
    """What each request got, and how many drafts were right; they run two at a time."""
    config = EngineConfig("test", "-", block_size=loaded.block_size, speculation=speculation, max_rows=2)
    runner = Counting(loaded.runner)
    engine = LocalEngine(config, replace(loaded, runner=runner), ByteTokenizer(), secret=b"s", clock=lambda: 0.0)
    got: dict[str, Any] = {}
    for prompt in requests:
        engine.submit(prompt)
        got[prompt.request.id] = {"text": "", "tokens": [], "logprobs": [], "finished": None}
    while engine.unfinished:
        for output in engine.step():
            each = got[output.request_id]
            each["text"] += output.text
            each["tokens"] += output.tokens
            each["logprobs"] += [(p.chosen.token, p.rank, [t.token for t in p.top]) for p in output.logprobs]
            if output.finished is not None:
                assert isinstance(output.finished, Finished)
                each["finished"] = replace(output.finished, queued_ms=0, prefill_ms=0, decode_ms=0)
        for scheduler in engine.schedulers:
            assert isinstance(scheduler, Scheduler)
            scheduler.check()
    return got, runner.accepted


def requests(seed: int) -> list[Prompt]:
    chance = random.Random(seed)

    def maybe(value: Any, neutral: Any) -> Any:
        return value if chance.random() < 0.3 else neutral

    made = []
    for number in range(6):
        period = [chance.randrange(32, 120) for _ in range(chance.randrange(1, 6))]
        sampling = SamplingParams(
            temperature=chance.choice([0.0, 0.0, 0.3, 1.0]),
            seed=chance.getrandbits(64),
            top_p=maybe(0.7, 1.0),
            top_k=maybe(5, 0),
            repetition_penalty=maybe(1.2, 1.0),
            frequency_penalty=maybe(0.5, 0.0),
            # A few tokens only, so that the text repeats itself.
            allowed_token_ids=tuple(chance.sample(range(32, 120), 3)) if chance.random() < 0.7 else (),
            stop=maybe(("".join(chr(t) for t in period[:2]),), ()),
            min_tokens=maybe(7, 0),
            logprobs=maybe(2, None),
            ignore_eos=True,
        )
        request = GenerationRequest(f"r{number}", "t", "d", sampling=sampling)
        made.append(Prompt(request, 40, ids=tuple(period * 8)))
    return made


@pytest.mark.parametrize("seed", first(range(6)))
def test_output_with_drafts_is_the_output_without(seed: int, loaded: LoadedModel) -> None:
    plain, none = outcome(loaded, requests(seed), 0)
    drafted, accepted = outcome(loaded, requests(seed), 8)
    assert drafted == plain
    assert none == 0
    assert accepted > 10


def test_a_stop_string_among_accepted_drafts_ends_text_and_usage_there(loaded: LoadedModel) -> None:
    """Tokens behind it were accepted in the same step: they are neither sent nor counted."""
    for length in range(1, 8):
        sampling = SamplingParams(temperature=0.0, allowed_token_ids=(65,), stop=("A" * (12 + length),), logprobs=0)
        prompt = Prompt(GenerationRequest("r", "t", "d", sampling=sampling), 60, ids=(65,) * 20)
        plain, _ = outcome(loaded, [prompt], 0)
        drafted, accepted = outcome(loaded, [prompt], 8)
        assert drafted == plain
        assert drafted["r"]["finished"].usage.output == 12 + length
        assert accepted >= 8
