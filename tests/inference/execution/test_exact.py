"""On the C tier an answer has the same bits alone, in any batch, in chunks of any size, preempted and from cache."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from inference.architectures.load import kernel_folder, load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.execution.tiers import choose
from inference.types import SamplingParams
from tests.inference.drive import Drive
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.skipif(
    not choose(torch.float32, kernel_folder()).tier.startswith("C kernels"), reason="no C kernels here"
)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95)
FORMS = [("float32", ""), ("bfloat16", ""), ("bfloat16", "w8a8"), ("bfloat16", "int4")]


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: "-".join(filter(None, form)))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Random weights of little spread: nearly equal logits, so that the last bit decides now and then."""
    dtype, quantization = request.param
    folder = save_tiny("qwen3", tmp_path_factory.mktemp("model"), sliding_window=None)
    config = EngineConfig("test", str(folder), dtype=dtype, quantization=quantization, kv_tokens=2048)
    model = load_model(config, threads=1)
    assert model.details["exact"].startswith("to the bit")
    backend = model.runner._causal
    logits = backend.logits
    backend.logits = lambda hidden: logits(hidden) * 0.05  # type: ignore[method-assign]
    return model


def test_alone_in_batches_chunked_and_from_cache(loaded: LoadedModel) -> None:
    chance = random.Random(5)
    prompts = [[chance.randrange(3, 211) for _ in range(chance.choice((3, 17, 40, 90)))] for _ in range(12)]
    prompts += [prompts[3] + [7, 8, 9], prompts[3][:30]]
    seeds = list(range(len(prompts)))
    greedy = replace(SEEDED, temperature=0.0)
    for sampling in (SEEDED, greedy):
        whole = {"max_step_tokens": 512, "prefill_chunk": 512, "prefix_cache": False}
        alone = [
            Drive(loaded, whole).run([prompt], 24, sampling, [seed])[0]
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        for changes in (
            {},
            {"prefill_chunk": 5, "max_step_tokens": 16},
            {"prefill_chunk": 33},
            {"max_rows": 3},
            {"kv_blocks": 16},  # rows are preempted
        ):
            driven = Drive(loaded, changes)
            for _ in range(2):  # again, with the prompts' K/V in the cache
                assert driven.run(prompts, 24, sampling, seeds) == alone, changes
