"""On the C tier an answer has the same bits alone and in every other condition; more: `benchmarks/engine/exactness.py`.

Alone, in any batch, in chunks of any size, preempted, from cache, with drafts, with steps that overlap.
"""

from __future__ import annotations

import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from tests.inference.exactness import CONDITIONS, Exactness
from tests.inference.random_requests import some_grammars
from tests.inference.sweeps import crossed
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("c_kernels", "one_checker")
FORMS = [
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "quantization": "w8a8"},
    {"dtype": "bfloat16", "quantization": "int4"},
    {"dtype": "float32", "kv_dtype": "int8"},
    {"dtype": "bfloat16", "quantization": "w8a8", "kv_dtype": "int8"},
]
TWO_THREADS = FORMS[2]  # the other forms have one
ORDERED = ["all of it", *(name for name in CONDITIONS if name != "all of it")]


@pytest.fixture(scope="module")
def exactness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exactness:
    folder = save_tiny("qwen3", tmp_path_factory.mktemp("model"), sliding_window=None)
    config = EngineConfig("test", str(folder), kv_tokens=4096, **request.param)
    loaded = load_model(config, threads=2 if request.param is TWO_THREADS else 1)
    assert loaded.details["exact"].startswith("to the bit")
    return Exactness(loaded, requests=16, seed=11)


@pytest.mark.parametrize(
    ("exactness", "condition"),
    crossed(FORMS, ORDERED, ids=lambda form: "-".join(form.values())),
    indirect=["exactness"],
    scope="module",
)
def test_answers_are_those_of_requests_alone(exactness: Exactness, condition: str) -> None:
    difference = exactness.compare(CONDITIONS[condition])
    assert difference.requests == 16
    assert str(difference) == "equal"
    # And the condition is what it says.
    assert exactness.preemptions or condition != "preempted"
    assert exactness.cached or condition != "from cache"
    assert exactness.accepted or condition != "with drafts"


def test_a_model_with_more_tokens_than_its_tokenizer_has_grammars_too() -> None:
    """As that of the benchmark has."""
    pytest.importorskip("llguidance")
    assert some_grammars(1537)
