"""The models of the first run: installed once and whole, and equal to their reference implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.step import EncodeRow, StepPlan
from inference.sources import first_models
from tests.first_models import made
from tests.inference.drive import Drive, assert_greedy, reference_model
from tests.inference.sweeps import first

PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three colours.",
    "Why is the sky blue?",
    "Translate to French: good morning.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "Give me a synonym for happy.",
    "Explain what a compiler does.",
    "Summarise: The customer says that the invoice of March was charged twice and asks for a refund.",
    "Name a mammal that lays eggs.",
    "How many days are in a week?",
    "Write a haiku about autumn.",
    "What does HTTP stand for?",
    "Is water wet?",
    "Correct this: she go to school yesterday.",
    "What is the largest planet?",
    "Continue: once upon a time",
    "def add(a, b):",
    "Schreibe einen Satz über Brot.",
)
NEW = 16


def test_a_missing_package_is_reported_and_its_model_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_models, "CHAT_FILE", ("no-such-package", "x.gguf"))
    monkeypatch.setattr(first_models, "EMBEDDING_FILE", ("pytest", "no/such/file"))
    assert first_models.install(tmp_path) == {}
    assert "the package no-such-package is not installed" in first_models.missing()[first_models.CHAT]
    assert set(first_models.missing()) == {first_models.CHAT, first_models.EMBEDDING}


def test_a_failed_installation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(first_models, "_installed_file", lambda *_: tmp_path)
    monkeypatch.setattr(first_models, "_make_chat", breaks)
    with pytest.raises(OSError, match="disk full"):
        first_models.install(tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_installed_model_is_kept_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / first_models.CHAT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(first_models, "_installed_file", lambda *_: None)
    assert first_models.install(tmp_path) == {first_models.CHAT: folder}


@pytest.mark.model
def test_embeddings_equal_the_reference() -> None:
    from transformers import AutoTokenizer, BertModel

    folder = made()[first_models.EMBEDDING]
    loaded = load_model(EngineConfig("test", str(folder)), threads=1)
    assert (loaded.max_input, loaded.vector_width) == (256, 384)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [*PROMPTS, "word " * 254]
    inputs = [tuple(tokenizer(text)["input_ids"]) for text in texts]
    plan = StepPlan(0, encodes=tuple(EncodeRow("a", i, ids) for i, ids in enumerate(inputs)))
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    for ids, data in zip(inputs, loaded.runner.launch(plan).wait().vectors, strict=True):
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        assert np.abs(np.frombuffer(data, "<f4") - (mean / mean.norm()).numpy()).max() < 1e-5


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("count", first([5, len(PROMPTS)]))
def test_chat_equals_generate(count: int) -> None:
    from transformers import AutoTokenizer

    folder = made()[first_models.CHAT]
    loaded = load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=4096))
    assert loaded.details["architecture"] == "own decoder (llama)"
    assert loaded.max_context == 8192
    tokenizer = AutoTokenizer.from_pretrained(loaded.tokenizer_folder)
    prompts = [prompt_ids(tokenizer, text) for text in PROMPTS[:count]]
    model = reference_model(folder)
    drive = Drive(loaded, {"prefill_chunk": 24})
    got = drive.run(prompts, NEW)
    for prompt, row in zip(prompts, got, strict=True):
        assert_greedy(model, prompt, row, NEW, loaded.eos_ids)
    assert tokenizer.decode(got[0]) == "The capital of France is Paris."
    again = drive.run(prompts[:3], NEW)  # from the prefix cache
    assert list(drive.cached.values())[-3:] == [32, 32, 32]
    for prompt, row in zip(prompts, again, strict=False):
        assert_greedy(model, prompt, row, NEW, loaded.eos_ids)
