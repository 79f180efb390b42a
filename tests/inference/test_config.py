"""Reading a worker's spec, and the errors of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig, WorkerConfig

ENGINE = EngineConfig("d", "source", options={"a": 1})


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
    ("fields", "match"),
    [
        ({"architecture": "decodr"}, "architecture 'decodr'"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"max_context": -1}, "max_context"),
        ({"max_waiting_per_tenant": 0}, "max_waiting_per_tenant"),
        ({"sampling": {"seed": 1}}, "seed"),
    ],
)
def test_a_wrong_engine_setting_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        EngineConfig("d", "source", **fields)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engines": [{}]}', json.dumps({"engines": [], "what": 1})])
def test_a_broken_file_is_a_value_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"spec\.json"):
        WorkerConfig.load(path)
