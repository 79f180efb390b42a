"""Tests that share what takes long to start run in one worker, whichever pytest and xdist run them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.plugin import TOGETHER, scope_of

ROOT = Path(__file__).resolve().parents[2]
TEST = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_it(n): pass\n"


@pytest.mark.slow  # starts a run of its own
def test_each_file_and_each_such_group_is_run_by_one_worker(tmp_path):
    starts = [*chain(*TOGETHER), "tests/kit/"]
    files = [f"{start}{'test' if start.endswith('/') else ''}_{name}.py" for start in starts for name in ("one", "two")]
    scopes = {scope_of(file): [each for each in files if scope_of(each) == scope_of(file)] for file in files}
    assert len(scopes) == len(TOGETHER) + 2
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(TEST)
    (tmp_path / "pytest.ini").touch()
    plugins = ["-p", "tests.plugin", "-p", "no:django", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *plugins, "--database=sqlite", "-n", "2", "-v", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line for line in done.stdout.splitlines() if " PASSED " in line]
    assert len(ran) == 6 * len(files)
    for together in scopes.values():
        workers = {line.partition("]")[0] for line in ran if any(file in line for file in together)}
        assert len(workers) == 1, (together, ran)
