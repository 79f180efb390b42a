"""On the C tier an answer has the same bits alone, in any batch, in chunks of any size, preempted and from cache.

That holds for what a family does otherwise too: norms behind, caps, windows, experts with any number of tokens.
"""

from __future__ import annotations

import random

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
KINDS = ("gemma3_text", "phi3", "olmo2", "granite", "mixtral", "olmoe", "qwen3_moe")
MORE = [*((kind, "bfloat16", "") for kind in KINDS), *(("qwen2_moe", *form) for form in (FORMS[0], *FORMS[2:]))]
CASES = [("gemma2", "bfloat16", ""), ("gemma2", "bfloat16", "", "int8"), ("qwen2_moe", "bfloat16", "")]
CASES += [pytest.param(case, marks=pytest.mark.slow) for case in MORE]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(filter(None, case)))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Random weights of little spread: nearly equal logits, so that the last bit decides now and then."""
    kind, *settings = request.param
    folder = save_tiny(kind, tmp_path_factory.mktemp("model"))
    named = dict(zip(("dtype", "quantization", "kv_dtype"), settings, strict=False))
    config = EngineConfig("test", str(folder), kv_tokens=2048, **named)
    model = load_model(config, threads=1)
    assert model.details["exact"].startswith("to the bit")
    backend = model.runner._causal
    logits = backend.logits
    backend.logits = lambda hidden: logits(hidden) * 0.05  # type: ignore[method-assign]
    return model


def test_alone_in_batches_chunked_preempted_and_from_cache(loaded: LoadedModel) -> None:
    chance = random.Random(5)
    prompts = [[chance.randrange(3, 211) for _ in range(count)] for count in (3, 17, 40, 90)]
    prompts += [prompts[3] + [7, 8, 9], prompts[3][:30]]
    seeds = list(range(len(prompts)))
    whole = {"max_step_tokens": 512, "prefill_chunk": 512, "prefix_cache": False}
    alone = [
        Drive(loaded, whole).run([prompt], 24, SEEDED, [seed])[0] for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    for changes in ({"prefill_chunk": 5, "max_step_tokens": 16}, {"kv_blocks": 16}):
        driven = Drive(loaded, changes)
        for _ in range(2):  # again, with the prompts' K/V in the cache
            assert driven.run(prompts, 24, SEEDED, seeds) == alone, changes
