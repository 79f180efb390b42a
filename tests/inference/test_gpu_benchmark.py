"""The script for machines with a GPU, gone through here with tiny shapes and without what such machines lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sweep  # about half a minute of interpreted kernels

BLOCKER = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "zmq", "django", "channels", "rest_framework", "uvicorn", "structlog"}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Blocked())
"""


def test_the_smoke_run_ends_with_its_table(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    answer = subprocess.run(
        ["benchmarks/gpu/run.sh", "--smoke"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHON": str(script)},
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = [line.strip("| ").split("|")[0].strip() for line in answer.stdout.splitlines() if line.startswith("|")]
    assert {"kernels compiled", "kernels right"} <= set(lines)
    assert {"float32, decoding 1 rows", "fp8, prefill", "ours over it"} <= set(lines)
    assert {"an adapter of rank 16", "decoding 1 rows, 1 adapter", "decoding 4 rows, 4 adapters"} <= set(lines)
    assert "FAILED" not in answer.stdout
