"""What runs doesn't depend on torch's default dtype.

It belongs to the whole process, and transformers sets it to a model's dtype while it makes that model: when a worker
loads one model beside others that it serves, their steps meet it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.types import SamplingParams
from tests.inference.architectures import test_encoder as encoders
from tests.inference.drive import GREEDY, Drive
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.slow

PROMPTS = [[5, 6, 7], [9] * 20, list(range(3, 60))]
SAMPLINGS = (
    GREEDY,
    SamplingParams(temperature=0.7, top_p=0.93),
    SamplingParams(temperature=1.1, min_p=0.03, logit_bias=((7, 1.2345), (9, -0.777))),
    SamplingParams(temperature=0.9, repetition_penalty=1.17, frequency_penalty=0.37, presence_penalty=0.11),
    SamplingParams(temperature=1.0, logprobs=3),
)


@contextmanager
def another_load() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("tier", ["auto", "reference"])
@pytest.mark.parametrize("kind", ["qwen3", "mixtral", "gpt_oss"])
def test_answers_while_another_model_is_loaded(tmp_path: Path, kind: str, tier: str) -> None:
    options = {"tier": tier, "cache": str(tmp_path / "cache")}
    config = EngineConfig("a", str(save_tiny(kind, tmp_path)), dtype="float32", kv_tokens=1024, options=options)
    loaded = load_model(config, threads=1)
    for sampling in SAMPLINGS:
        alone = Drive(loaded).run(PROMPTS, 12, sampling, seeds=[1, 2, 3])
        with another_load():
            assert Drive(loaded).run(PROMPTS, 12, sampling, seeds=[1, 2, 3]) == alone


def test_embeddings_while_another_model_is_loaded(tmp_path: Path) -> None:
    loaded = encoders.load(encoders.save_encoder(tmp_path, "mean_tokens"))
    alone = encoders.vectors(loaded, [(1, 2, 3), (4, 5)])
    with another_load():
        assert [each.tolist() for each in encoders.vectors(loaded, [(1, 2, 3), (4, 5)])] == [e.tolist() for e in alone]
