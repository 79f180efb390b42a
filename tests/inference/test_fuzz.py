"""A whole engine under random load and faults: each request as alone (5,000: `python -m tests.inference.fuzz`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.execution.backend import LoadedModel
from tests.inference.fuzz import Fuzz, load
from tests.inference.sweeps import first

Loaded = tuple[LoadedModel, dict[str, Path]]
needs_c = pytest.mark.usefixtures("c_kernels")


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The model with the settings of the parameter, if there is one."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    return load(folder, **getattr(request, "param", {}))


@needs_c
@pytest.mark.parametrize("loaded", first([{}, {"kv_dtype": "int8"}]), indirect=True)
def test_random_requests_answer_as_they_do_alone(loaded: Loaded) -> None:
    fuzz = Fuzz(*loaded, seed=3)
    ends = fuzz.run(160)
    assert sum(ends.values()) == 160
    assert fuzz.whole > 60
    assert fuzz.several > 10
    assert fuzz.accepted > 5
    assert set(fuzz.faults) == {"poison", "step", "memory", "row"}
    assert fuzz.preemptions
    assert fuzz.cached
    assert fuzz.apart > 10
    assert fuzz.crowded
    assert ends["queue_timeout"]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10, 20))  # parts, which the suite's processes share
def test_five_thousand_random_requests_answer_as_they_do_alone(loaded: Loaded, seed: int) -> None:
    assert sum(Fuzz(*loaded, seed=seed).run(500).values()) == 500


@pytest.mark.sweep
@needs_c
@pytest.mark.parametrize(
    "loaded",
    [
        {"family": "mistral", "dtype": "bfloat16", "threads": 2},
        {"family": "gemma2", "dtype": "bfloat16", "quantization": "w8a8", "kv_dtype": "int8"},
    ],
    ids=lambda form: "-".join(map(str, form.values())),
    indirect=True,
)
def test_with_a_sliding_window_in_bf16_and_w8a8_too(loaded: Loaded) -> None:
    """The longest requests are several windows long."""
    fuzz = Fuzz(*loaded, seed=3)
    assert sum(fuzz.run(240).values()) == 240
    assert fuzz.accepted
    assert fuzz.cached
    assert set(fuzz.faults) == {"poison", "step", "memory", "row"}
    assert fuzz.preemptions
