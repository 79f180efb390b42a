"""What machines with accelerators lack: the engine below the worker imports and runs without transport and web."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.slow  # a whole interpreter with torch

WIRE = ("worker", "clients", "open", "engine", "protocol", "conversion", "curve", "apps", "management", "__main__")
BLOCKED = ("msgspec", "zmq", "django", "channels", "rest_framework", "uvicorn", "structlog", "llguidance")
SCRIPT = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Blocked())
import torch
torch.set_num_threads(1)
import inference

for module in pkgutil.walk_packages(inference.__path__, "inference."):
    parts = set(module.name.split("."))
    if parts.isdisjoint({wire}):
        importlib.import_module(module.name)

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams

config = EngineConfig("d", {folder!r}, dtype="float32", kv_tokens=128)
engine = LocalEngine(config, load_model(config, threads=1))
greedy = SamplingParams(temperature=0.0)
engine.submit(Prompt(GenerationRequest("r", "t", "d", sampling=greedy), 9, ids=(5, 6, 7)))
tokens = []
while engine.unfinished:
    for output in engine.step():
        tokens += output.tokens
print(len(tokens), sorted(name for name in {blocked} if name in sys.modules))
"""


def test_core_and_execution_run_without_transport_and_web(tmp_path: Path) -> None:
    script = SCRIPT.format(blocked=BLOCKED, wire=WIRE, folder=str(save_tiny("llama", tmp_path)))
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.stdout.strip().endswith("9 []"), answer.stderr


def test_a_worker_without_models_of_torch_runs_without_torch() -> None:
    """Loaded, it takes most of the time in which a worker starts."""
    script = (
        "import inference.worker.process, inference.architectures.fake, sys\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "[]", answer.stderr
