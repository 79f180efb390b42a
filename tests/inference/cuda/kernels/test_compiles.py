"""Every kernel builds for the GPUs that we serve on, without one: the interpreter accepts what the compiler doesn't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inference.sweeps import first

KERNELS = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "capability"), first([("one", 90), ("all", 80), ("all", 89), ("all", 90), ("all", 100)])
)
def test_every_kernel_builds(which: str, capability: int, tmp_path: Path) -> None:
    script = Path(__file__).with_name("compiling.py")
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "TRITON_CACHE_DIR": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, str(script), which, str(capability)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    built = {line.split()[1] for line in answer.stdout.splitlines()}
    assert len(built) == KERNELS, sorted(built)
