"""Adapters change exactly the rows that name them, as merged weights would, whatever the scheduler does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.errors import InvalidRequestError, OverloadedError, UnpreparedError
from inference.execution.adapter_room import Bounds
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import ByteTokenizer
from inference.types import SamplingParams
from tests.inference.adapting import FUSED, merge, save_adapter
from tests.inference.drive import Drive, Reference, assert_same, reference_model
from tests.inference.engine_contract import chat
from tests.inference.exactness import overlapping
from tests.inference.sweeps import crossed, first
from tests.inference.tiny import save_tiny

PROMPTS = [[5, 9, 11, 30, 7], list(range(3, 40)), [60, 61, 62] * 9, list(range(100, 121))]
NEW = 12


def load(folder: Path, **settings: Any) -> LoadedModel:
    settings = {"dtype": "float32", "kv_tokens": 2048, **settings}
    return load_model(EngineConfig("test", str(folder), **settings), threads=1)


ADAPTED: list[tuple[str, int, dict[str, Any]]] = [
    ("phi3", 5, {"targets": FUSED}),
    ("qwen3", 16, {"use_rslora": True}),
    ("llama", 1, {}),
    ("qwen2", 3, {"targets": ("q_proj", "down_proj")}),
    ("mixtral", 4, {"targets": ("k_proj", "o_proj")}),
]


@pytest.mark.parametrize(
    ("adapted", "tier"), crossed(ADAPTED, ["auto", "torch", "reference"], ids=lambda adapted: adapted[0])
)
def test_equal_to_merged_weights(tmp_path: Path, adapted: tuple[str, int, dict[str, Any]], tier: str) -> None:
    """In one step with rows of another adapter and of none, all in chunks."""
    kind, rank, settings = adapted
    folder = save_tiny(kind, tmp_path / "model")
    one = save_adapter(folder, tmp_path / "one", rank=rank, **settings)
    two = save_adapter(folder, tmp_path / "two", rank=2, alpha=3, seed=1, targets=settings.get("targets", ("up_proj",)))
    drive = Drive(load(folder, options={"tier": tier}), {"prefill_chunk": 9, "max_step_tokens": 40})
    drive.engine.offer({"one": one, "two": two})
    got = drive.run(
        [*PROMPTS, *PROMPTS, *PROMPTS], NEW, adapters=["", "one", "two", "one"] * 2 + ["one", "two", "", ""]
    )
    bases = {"": folder, "one": merge(folder, one, tmp_path / "m1"), "two": merge(folder, two, tmp_path / "m2")}
    for name, base in bases.items():
        model = reference_model(base)
        rows = [i for i, n in enumerate(["", "one", "two", "one"] * 2 + ["one", "two", "", ""]) if n == name]
        assert_same([got[i] for i in rows], [Reference.of(model, PROMPTS[i % 4], NEW) for i in rows])
    assert got[1] != got[9]  # and the adapters are seen
    assert got[0] != got[8]


FORMS = [
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "quantization": "w8a8"},
    {"dtype": "bfloat16", "quantization": "int4"},
    {"dtype": "bfloat16", "kv_dtype": "int8"},
]
NAMES = ["a", "", "b", "a"]


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, c_kernels: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, Any]:
    root = tmp_path_factory.mktemp("adapted")
    folder = save_tiny("qwen3", root / "model", sliding_window=None)
    loaded = load(folder, kv_tokens=4096, **request.param)
    offered = {name: save_adapter(folder, root / name, rank=3 + seed, seed=seed) for seed, name in enumerate("ab")}
    return loaded, offered


CONDITIONS: dict[str, dict[str, Any]] = {
    "batched": {},
    "in chunks": {"prefill_chunk": 5, "max_step_tokens": 21, "prefix_cache": False},
    "preempted": {"kv_blocks": 10, "prefix_cache": False},
    "with drafts": {"speculation": 4, "max_rows": 2},
    "overlapped": {"overlaps": True},
}


@pytest.mark.parametrize(
    ("served", "condition"),
    crossed(FORMS, CONDITIONS, ids=lambda form: "-".join(form.values())),
    indirect=["served"],
    scope="module",
)
def test_the_same_bits_alone_and_in_every_condition(served: Any, condition: str) -> None:
    loaded, offered = served
    told = SamplingParams(temperature=0.8, logprobs=2)
    alone = Drive(loaded, {"prefix_cache": False, "max_rows": 1})
    alone.engine.offer(offered)
    prompts = PROMPTS * 2
    names = NAMES + NAMES[::-1]
    seeds = list(range(8))
    expected = alone.run(prompts, 24, told, seeds, names)
    changes = dict(CONDITIONS[condition])
    if changes.pop("overlaps", False):
        loaded = replace(loaded, runner=overlapping(loaded.runner))
    drive = Drive(loaded, changes)
    for _ in range(2):  # the second time from the cache, and by recorded programs
        assert drive.run(prompts, 24, told, seeds, names) == expected
    plain = Drive(loaded, {"prefix_cache": False, "max_rows": 1}).run(prompts, 24, told, seeds)
    same = [one == other for one, other in zip(plain, expected, strict=True)]
    assert same == [not name for name in names]
    assert isinstance(drive.scheduler, Scheduler)
    assert drive.scheduler.stats().preemptions or condition != "preempted"
    assert loaded.adapters is not None
    assert not loaded.adapters._held


@pytest.mark.parametrize("served", first(FORMS), indirect=True)
def test_steps_with_adapters_are_recorded_like_others(served: Any) -> None:
    """A step that the recorder finds to compute between the kernels would put an end to recording, for every row."""
    loaded, offered = served
    programs = loaded.runner._packer.attention._programs
    drive = Drive(loaded, {})
    drive.engine.offer(offered)
    drive.run(PROMPTS, NEW, adapters=NAMES)
    assert not programs.refused
    assert any(program is not None and key[0] for key, program in programs._known.items())


def test_prefixes_are_shared_within_an_adapter_alone(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model")
    drive = Drive(load(folder))
    one, two = (save_adapter(folder, tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    drive.engine.offer({"one": one, "two": two})
    prompt = [PROMPTS[1]]
    for name, cached in (("one", 0), ("", 0), ("two", 0), ("one", 32), ("", 32), ("two", 32)):
        drive.run(prompt, 2, adapters=[name])
        assert list(drive.cached.values())[-1] == cached, name
    # Another folder behind the name is another adapter, and the same one again is not.
    drive.engine.offer({"one": two, "two": two})
    before = drive.run(prompt, 8, adapters=["two"])
    assert drive.run(prompt, 8, adapters=["one"]) == before
    assert list(drive.cached.values())[-2:] == [32, 0]


def adapted_engine(folder: Path) -> LocalEngine:
    config = EngineConfig("test", str(folder), dtype="float32", kv_tokens=2048, block_size=16)
    return LocalEngine(config, load(folder, options={"tier": "torch"}), ByteTokenizer())


def test_a_request_names_its_adapter(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model", vocab_size=300)
    engine = adapted_engine(folder)
    request = chat("hello", max_tokens=4, ignore_eos=True, n=2)
    for name in ("law", "../law", "/etc", str(tmp_path / "a0")):
        with pytest.raises(InvalidRequestError) as caught:
            engine.prepare(replace(request, adapter=name))
        assert caught.value.code == "unknown_adapter"
    engine.offer({f"a{i}": save_adapter(folder, tmp_path / f"a{i}", seed=i) for i in range(4)}, Bounds(2))
    adapters = engine.model.adapters
    assert adapters is not None
    prompts = {name: engine.prepare(replace(request, id=name, adapter=name)) for name in ("a0", "a1")}
    engine.submit(prompts["a0"])
    engine.step()
    later = engine.prepare(replace(request, id="a2", adapter="a2"))  # in the place of a1, which nobody holds
    assert [key.partition(":")[0] for key in adapters.loaded] == ["a0", "a2"]
    with pytest.raises(UnpreparedError):
        engine.submit(prompts["a1"])
    engine.submit(later)
    with pytest.raises(OverloadedError):
        engine.prepare(replace(request, id="a3", adapter="a3"))
    engine.offer({"a3": tmp_path / "a3"}, Bounds(2))  # what runs goes on
    assert len(adapters.loaded) == 2
    while engine.unfinished:
        for output in engine.step():
            assert output.finished is None or output.finished.error is None
    assert adapters.loaded == ()
    engine.prepare(replace(request, id="a3", adapter="a3"))
    assert len(adapters.loaded) == 1
    assert adapters.nbytes > 0


def test_prepared_prefixes_are_rooted_in_the_adapter(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model", vocab_size=300)
    engine = adapted_engine(folder)
    engine.offer({name: save_adapter(folder, tmp_path / name, seed=i) for i, name in enumerate("ab")})
    request = chat("a text of several blocks of tokens, " * 4, max_tokens=4)
    keys = {name: engine.prepare(replace(request, adapter=name)).keys for name in ("", "a", "b")}
    assert len(keys[""]) > 2
    assert not set(keys[""]) & set(keys["a"]) | set(keys["a"]) & set(keys["b"]) | set(keys[""]) & set(keys["b"])
    assert engine.prepare(replace(request, adapter="a")).keys == keys["a"]


def test_a_cancelled_request_holds_no_adapter(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model", vocab_size=300)
    engine = adapted_engine(folder)
    engine.offer({"a": save_adapter(folder, tmp_path / "a")}, Bounds(1))
    for n in (1, 2):
        for steps in (0, 2):
            request = chat("hello", max_tokens=9, ignore_eos=True, n=n)
            engine.submit(engine.prepare(replace(request, adapter="a")))
            for _ in range(steps):
                engine.step()
            engine.cancel(request.id)
            engine.step()
            assert engine.model.adapters is not None
            assert not engine.model.adapters._held, (n, steps)


def test_a_step_in_flight_keeps_the_adapters_of_rows_that_have_ended(tmp_path: Path) -> None:
    """On a GPU another adapter would be read into memory that the step still reads."""
    folder = save_tiny("llama", tmp_path / "model", vocab_size=300)
    loaded = load(folder, options={"tier": "torch"})
    loaded = replace(loaded, runner=overlapping(loaded.runner))
    config = EngineConfig("test", str(folder), dtype="float32", kv_tokens=2048, block_size=16)
    engine = LocalEngine(config, loaded, ByteTokenizer())
    engine.offer({name: save_adapter(folder, tmp_path / name, seed=i) for i, name in enumerate("ab")}, Bounds(1))
    adapters = loaded.adapters
    assert adapters is not None
    asked = chat("hello", max_tokens=40, ignore_eos=True)
    for request in (replace(asked, adapter="a"), replace(asked, id="other")):
        engine.submit(engine.prepare(request))
    for _ in range(3):
        engine.step()
    engine.cancel(asked.id)
    ended = [output.request_id for output in engine.take_outputs() if output.finished is not None]
    assert ended == [asked.id]
    with pytest.raises(OverloadedError):
        adapters.load("b")
    engine.offer({"b": tmp_path / "b"}, Bounds(1))  # withdrawn, it stays as well
    assert [key.partition(":")[0] for key in adapters.loaded] == ["a"]
    engine.step()
    assert adapters.loaded == ()
    assert adapters.load("b").startswith("b:")
    while engine.unfinished:
        engine.step()


def test_models_of_transformers_take_none(tmp_path: Path) -> None:
    folder = save_tiny("gpt2", tmp_path / "model", vocab_size=300)
    engine = adapted_engine(folder)
    with pytest.raises(InvalidRequestError, match="takes no adapters"):
        engine.offer({})
    with pytest.raises(InvalidRequestError, match="takes no adapters"):
        engine.prepare(replace(chat("hello"), adapter="a"))


def test_sixteen_together_are_sixteen_models_and_coming_and_going_stops_nobody(tmp_path: Path) -> None:
    """In one step with rows of none; while they run, adapters are offered, loaded and withdrawn."""
    folder = save_tiny("llama", tmp_path / "model")
    names = [f"a{i}" for i in range(16)]
    offered = {name: save_adapter(folder, tmp_path / name, rank=1 + i, seed=i) for i, name in enumerate(names)}
    drive = Drive(load(folder), {"max_rows": 20})
    drive.engine.offer(offered, Bounds(16))
    adapters = drive.engine.model.adapters
    assert adapters is not None
    prompts = [PROMPTS[i % 4] for i in range(17)]
    got = drive.run(prompts, NEW, adapters=[*names, ""])
    assert len(adapters.loaded) == 16
    for name, prompt, answer in zip(names, prompts, got, strict=False):
        merged = reference_model(merge(folder, offered[name], tmp_path / f"m{name}"))
        assert_same([answer], [Reference.of(merged, prompt, NEW)])

    begun: list[str] = []
    step = drive.engine.step

    def changing() -> Any:
        """Offer others at each step: the ones that run are among those withdrawn."""
        if drive.engine.unfinished:
            kept = {name: path for name, path in offered.items() if len(begun) % 2 or name == "a0"}
            drive.engine.offer(kept, Bounds(1))
            with suppress(OverloadedError):
                adapters.load("a0")
            begun.append("step")
        return step()

    drive.engine.step = changing  # type: ignore[method-assign]
    assert drive.run(prompts, NEW, adapters=[*names, ""]) == got
    assert begun
    assert len(adapters.loaded) <= 2
