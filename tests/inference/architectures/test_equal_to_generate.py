"""Greedy output equals `transformers.generate` in float32, whatever the scheduler does with the sequences."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.step import Row
from inference.execution.backend import LoadedModel
from inference.types import SamplingParams
from tests.inference.drive import GREEDY, Drive, Reference, assert_same, reference_model
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.slow

OWN = (
    "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "olmo3", "granite",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
)  # fmt: skip
FORMS = OWN[4:]  # of the layers, which don't change with the variant
FOREIGN = ("gpt2", "gpt_oss", "cohere")
NEW = 20

VARIANTS: dict[str, dict[str, Any]] = {
    "batched": {},
    "one at a time": {"max_rows": 1},
    "small chunks": {"prefill_chunk": 7, "max_step_tokens": 16, "max_rows": 4},
    "no prefix cache": {"prefix_cache": False},
    "eight blocks": {"kv_blocks": 9},
}


def prompts() -> list[list[int]]:
    """Prompts of one to sixty tokens, three of which begin alike."""
    chance = random.Random(3)
    shared = [chance.randrange(3, 211) for _ in range(40)]
    short = [[chance.randrange(3, 211) for _ in range(n)] for n in (1, 17, 60)]
    return short + [shared + [chance.randrange(3, 211) for _ in range(n)] for n in (2, 9, 15)]


CASES = [
    (kind, variant)
    for kind in (*OWN, *FOREIGN)
    for variant in VARIANTS
    if kind not in FORMS or variant in {"batched", "eight blocks"}
]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_tiny(request.param, tmp_path_factory.mktemp(request.param))
    loaded = load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=1024), threads=1)
    model = reference_model(folder)
    return request.param, loaded, [Reference.of(model, prompt, NEW) for prompt in prompts()]


@pytest.mark.parametrize(
    ("case", "variant"),
    first(CASES, of=lambda case: case[1] if case[0] in OWN else "foreign"),
    indirect=["case"],
    scope="module",
)
def test_greedy(case: tuple[str, LoadedModel, list[Reference]], variant: str) -> None:
    kind, loaded, expected = case
    path = "own decoder" if kind in OWN else "transformers"
    assert loaded.details["architecture"] == f"{path} ({kind})"
    drive = Drive(loaded, VARIANTS[variant])
    assert_same(drive.run(prompts(), NEW), expected)
    stats = drive.scheduler.stats()
    assert (stats.preemptions > 0) == (variant == "eight blocks")
    assert_same(drive.run(prompts(), NEW), expected)
    cached = list(drive.cached.values())[len(prompts()) :]
    if variant == "no prefix cache":
        assert not any(cached)
    elif variant != "eight blocks":
        assert cached == [0, 16, 48, 32, 48, 48]


@pytest.mark.parametrize("kind", first(["qwen3", "mixtral"]))
def test_overlapped_steps_give_the_same(tmp_path: Path, kind: str) -> None:
    """Greedy, drawn and penalised, with ends that are learned late, in chunks, preempted and from the prefix cache."""
    folder = save_tiny(kind, tmp_path)
    config = {"dtype": "float32", "kv_tokens": 1024}
    plain, overlapped = (
        load_model(EngineConfig("a", str(folder), options={"overlap": overlap}, **config), threads=1)
        for overlap in (False, True)
    )
    drawn = SamplingParams(temperature=1.3, top_k=40)
    penalised = SamplingParams(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.4)
    stops = SamplingParams(temperature=1.5, stop_token_ids=tuple(range(3, 40)))
    for changes in ({}, {"prefill_chunk": 7, "max_step_tokens": 16, "max_rows": 4}, {"kv_blocks": 9}):
        one, other = Drive(plain, changes), Drive(overlapped, changes)
        for sampling in (GREEDY, drawn, penalised, stops):
            seeds = list(range(6))
            expected = one.run(prompts(), NEW, sampling, seeds)
            assert other.run(prompts(), NEW, sampling, seeds) == expected, (changes, sampling)
            if sampling is stops:
                assert len({len(tokens) for tokens in expected}) > 2
        assert (other.scheduler.stats().preemptions > 0) == ("kv_blocks" in changes)
        assert other.engine.steps > one.engine.steps or "kv_blocks" in changes


def test_the_own_decoder_equals_the_transformers_path(tmp_path: Path) -> None:
    folder = save_tiny("qwen3", tmp_path)
    config = {"dtype": "float32", "kv_tokens": 1024}
    own = load_model(EngineConfig("a", str(folder), **config), threads=1)
    foreign = load_model(EngineConfig("b", str(folder), architecture="transformers", **config), threads=1)
    assert foreign.details["architecture"] == "transformers (qwen3)"
    assert Drive(own).run(prompts(), NEW) == Drive(foreign).run(prompts(), NEW)


@pytest.mark.parametrize("kind", first(["yarn", "linear", "llama3"]))
def test_scaled_rope(tmp_path: Path, kind: str) -> None:
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0}
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = 128
    folder = save_tiny("llama", tmp_path, rope_parameters=parameters, attention_bias=True, mlp_bias=True)
    loaded = load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=1024), threads=1)
    assert loaded.details["architecture"] == "own decoder (llama)"
    model = reference_model(folder)
    assert_same(Drive(loaded).run(prompts(), NEW), [Reference.of(model, prompt, NEW) for prompt in prompts()])


@pytest.mark.parametrize("kind", first(["gemma2", "gpt2", "mixtral"]))
def test_body_and_head_of_a_foreign_model_run_apart(tmp_path: Path, kind: str) -> None:
    """Gemma 2 caps its logits after the head, which has to stay; only wanted tokens go through the head."""
    config = {"dtype": "float32", "kv_tokens": 64, "architecture": "transformers"}
    loaded = load_model(EngineConfig("test", str(save_tiny(kind, tmp_path)), **config), threads=1)
    model = loaded.runner._causal
    batch = loaded.runner._packer.pack([Row(0, "r", (5, 6, 7), 0, (1,), True, 0, SamplingParams(), 0)])
    with torch.inference_mode():
        hidden = model.forward(batch)
        assert hidden.shape == (1, 64)
        logits = model.logits(hidden)
        model.model.set_attn_implementation("eager")
        plain = model.model(input_ids=torch.tensor([[5, 6, 7]]), position_ids=torch.arange(3)[None]).logits[0, -1]
        torch.testing.assert_close(logits[0], plain, atol=1e-5, rtol=1e-4)
