"""Log-probabilities through the whole engine, against one plain forward pass of the same model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, PositionLogprobs, SamplingParams, TokenLogprob, seed_of
from tests.inference.drive import Drive, reference_model
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("logprobs"))


@pytest.fixture(scope="module")
def truth(folder: Path) -> Any:
    return reference_model(folder)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=1024), threads=1)


def run(drive: Drive, prompts: list[list[int]], most: int, **sampling: Any) -> dict[str, dict[str, list[Any]]]:
    told: dict[str, dict[str, list[Any]]] = {}
    for prompt in prompts:
        name = f"r{next(drive.ids)}"
        told[name] = {"prompt": prompt, "tokens": [], "logprobs": [], "prompt_logprobs": []}
        request = GenerationRequest(name, "t", "d", sampling=SamplingParams(**{"seed": 1, **sampling}))
        drive.engine.submit(Prompt(request, most, ids=tuple(prompt)))
    while drive.engine.unfinished:
        for output in drive.engine.step():
            each = told[output.request_id]
            each["tokens"] += output.tokens
            each["logprobs"] += output.logprobs
            each["prompt_logprobs"] += output.prompt_logprobs
        drive.scheduler.check()
    return told


def assert_told(entries: list[PositionLogprobs], logits: torch.Tensor, tokens: list[int], count: int) -> None:
    assert [entry.chosen.token for entry in entries] == tokens
    logprobs = logits.double().log_softmax(-1)
    for entry, line in zip(entries, logprobs, strict=True):
        assert entry.chosen.logprob == pytest.approx(line[entry.chosen.token].item(), abs=2e-4)
        assert entry.rank == int((line > line[entry.chosen.token]).sum()) + 1
        best = line.topk(count).values.tolist() if count else []
        assert [one.logprob for one in entry.top] == pytest.approx(best, abs=2e-4)


@pytest.mark.parametrize("settings", [{}, {"prefill_chunk": 5}, {"kv_blocks": 9, "prefill_chunk": 7}], ids=str)
def test_every_position_is_told_once_and_truly(settings: dict[str, Any], loaded: LoadedModel, truth: Any) -> None:
    """Chunked, preempted, and with a prompt whose blocks are in the prefix cache."""
    drive = Drive(loaded, settings)
    chance = random.Random(2)
    shared = [chance.randrange(211) for _ in range(40)]
    run(drive, [[*shared, 1]], 2, temperature=0.0)
    prompts = [[*shared, *(chance.randrange(211) for _ in range(n))] for n in (1, 9, 30)]
    told = run(
        drive, prompts, 20, temperature=1.0, logprobs=3, prompt_logprobs=2, logit_bias=((5, 9.0),), presence_penalty=1.0
    )
    for each in told.values():
        whole = [*each["prompt"], *each["tokens"]]
        with torch.no_grad():
            logits = truth(torch.tensor([whole])).logits[0]
        length = len(each["prompt"])
        assert_told(each["prompt_logprobs"], logits[: length - 1], each["prompt"][1:], 2)
        assert_told(each["logprobs"], logits[length - 1 : -1], each["tokens"], 3)
        assert len(each["tokens"]) == 20
    if "kv_blocks" in settings:
        assert drive.scheduler.stats().preemptions


def test_what_is_not_asked_for_is_not_told(loaded: LoadedModel) -> None:
    drive = Drive(loaded)
    (told,) = run(drive, [[1, 2, 3, 4]], 3, temperature=0.0).values()
    assert told["logprobs"] == told["prompt_logprobs"] == []
    (told,) = run(drive, [[1, 2, 3, 4]], 3, temperature=0.0, logprobs=0).values()
    assert [len(entry.top) for entry in told["logprobs"]] == [0, 0, 0]


def test_the_best_of_several_answers_is_the_one_with_the_highest_mean(loaded: LoadedModel) -> None:
    drive = Drive(loaded)

    def answer(seed: int, **sampling: int) -> list[TokenLogprob]:
        (told,) = run(drive, [[1, 2, 3]], 8, seed=seed, logprobs=0, **sampling).values()
        return [entry.chosen for entry in told["logprobs"]]

    places = set()
    for seed in range(40, 44):
        alone = [answer(seed_of(seed, index)) for index in range(3)]
        means = [sum(entry.logprob for entry in each) / len(each) for each in alone]
        places.add(means.index(max(means)))
        best, got = max(zip(means, alone, strict=True), key=lambda each: each[0])[1], answer(seed, n=1, best_of=3)
        assert [entry.token for entry in got] == [entry.token for entry in best]
        assert [entry.logprob for entry in got] == pytest.approx([entry.logprob for entry in best], abs=1e-5)
    assert places != {0}, "the first was always the best"
