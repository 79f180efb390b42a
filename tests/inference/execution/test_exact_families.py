"""On the C tier an answer has the same bits alone, in any batch, in chunks of any size, preempted and from cache.

That holds for what a family does otherwise too: norms behind, caps, windows, experts with any number of tokens.
"""

from __future__ import annotations

import random

import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.types import SamplingParams
from tests.inference.drive import Drive
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("c_kernels")
SEEDED = SamplingParams(temperature=1.0, top_p=0.95)
BF16 = {"dtype": "bfloat16"}
CASES: list[dict[str, str]] = [
    {"kind": "gemma2", **BF16, "kv_dtype": "int8"},
    {"kind": "qwen2_moe", **BF16},
    {"kind": "gemma2", **BF16},
    *({"kind": kind, **BF16} for kind in ("gemma3_text", "phi3", "olmo2", "granite", "mixtral", "olmoe", "qwen3_moe")),
    {"kind": "qwen2_moe", "dtype": "float32"},
    {"kind": "qwen2_moe", **BF16, "quantization": "w8a8"},
    {"kind": "qwen2_moe", **BF16, "quantization": "int4"},
]


@pytest.fixture(
    scope="module",
    params=first(CASES, of=lambda case: "moe" in case["kind"]),
    ids=lambda case: "-".join(case.values()),
)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Random weights of little spread: nearly equal logits, so that the last bit decides now and then."""
    settings = dict(request.param)
    folder = save_tiny(settings.pop("kind"), tmp_path_factory.mktemp("model"))
    config = EngineConfig("test", str(folder), kv_tokens=2048, **settings)
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
