"""Reading a worker's spec, and the errors of a wrong one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig, SettingError, WorkerConfig

ENGINE = EngineConfig("d", "source", options={"tier": "torch"})


def config(**fields: Any) -> WorkerConfig:
    return WorkerConfig(**{"endpoint": "ipc:///tmp/s", "record": "r", "secret": "s", "engines": (ENGINE,), **fields})


def test_a_spec_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    spec = config(threads=2)
    spec.save(path)
    assert WorkerConfig.load(path) == spec
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"endpoint": "ipc:///" + "x" * 110}, "107"),
        ({"endpoint": "inproc://x"}, "ipc://path or tcp://"),
        ({"endpoint": "tcp://127.0.0.1:1"}, "key file"),
        ({"keys": "node.key"}, "key file"),
        ({"engines": (ENGINE, ENGINE)}, "same deployment"),
    ],
)
def test_a_wrong_worker_setting_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        config(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architecture", "decodr"),
        ("dtype", "int8"),
        ("dtype", 16),
        ("quantization", None),
        ("kv_dtype", ["fp8"]),
        ("kv_dtype", "q8_0"),
        ("device", "cuda:-1"),
        ("device", 0),
        ("max_context", -1),
        ("max_rows", "32"),
        ("max_rows", True),
        ("max_rows", 32.5),
        ("max_step_tokens", 10**9),
        ("kv_tokens", 10**18),
        ("max_waiting_per_tenant", 0),
        ("speculation", -1),
        ("speculation", 10**9),
        ("prefill_seconds", math.nan),
        ("reclaim_seconds", math.inf),
        ("prefix_cache", "no"),
        ("sampling", [0.5]),
        ("sampling", {"seed": 1}),
        ("sampling", {"temperature": math.nan}),
        ("sampling", {"temperature": -1}),
        ("sampling", {"top_k": 5.5}),
        ("sampling", {"top_p": 0}),
        ("options", "c"),
        ("options", {"teir": "c"}),
        ("options", {"tier": ["c"]}),
        ("options", {"overlap": "no"}),
        ("options", {"cache": 5}),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        EngineConfig("d", "source", **{name: value})
    assert caught.value.message.startswith(name)
    assert str(caught.value).startswith(f"engine d: {name}")


def test_a_fake_models_options_are_its_own() -> None:
    assert EngineConfig("d", "source", architecture="fake", options={"text": "hi"}).options == {"text": "hi"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engines": [{}]}', json.dumps({"engines": [], "what": 1})])
def test_a_broken_file_is_a_value_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"spec\.json"):
        WorkerConfig.load(path)
