"""What machines with accelerators lack: the engine below the worker imports and runs without transport and web."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.slow  # a whole interpreter with torch

BLOCKED = ("msgspec", "zmq", "django", "channels", "rest_framework", "uvicorn", "structlog")
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
    parts = module.name.split(".")
    if not {{"worker", "text", "apps", "management", "__main__"}} & set(parts):
        importlib.import_module(module.name)

from inference.config import EngineConfig
from inference.core.config import SchedulerConfig
from inference.core.prefix import PrefixKeys
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.architectures.load import load_model
from inference.types import SamplingParams

engine = EngineConfig("d", {folder!r}, dtype="float32", kv_tokens=128)
loaded = load_model(engine, threads=1)
bounds = SchedulerConfig.of(
    engine, blocks=loaded.kv_blocks, max_context=loaded.max_context, vocab_size=loaded.vocab_size, eos_ids=frozenset()
)
scheduler = Scheduler(bounds, PrefixKeys(b"s", model="m", dtype="d", block_size=16), lambda: 0.0)
scheduler.submit(Sequence("r", "t", "d", (5, 6, 7), 9, 9, last=True, sampling=SamplingParams(temperature=0.0)))
tokens = []
while scheduler.unfinished:
    plan = scheduler.plan()
    for output in scheduler.commit(plan, loaded.runner.launch(plan).wait()):
        tokens += output.tokens
print(len(tokens), sorted(name for name in {blocked} if name in sys.modules))
"""


def test_core_and_execution_run_without_transport_and_web(tmp_path: Path) -> None:
    script = SCRIPT.format(blocked=BLOCKED, folder=str(save_tiny("llama", tmp_path)))
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.stdout.strip().endswith("9 []"), answer.stderr
