"""What failed in a run, once more: `python -m tests.again` runs it alone and in order.

What passes then failed by chance: it is told as ``FLAKY path::test``. The exit status is 0 if all of it passes, and
never where the run before didn't reach its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAILED = Path(__file__).parents[1] / ".pytest_cache/failed.json"
"""The tests that failed in the last run, if it reached its end."""


def pytest_configure(config: pytest.Config) -> None:
    """Forget the run before."""
    if not hasattr(config, "workerinput"):
        FAILED.unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Note what failed."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        reports = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
        FAILED.parent.mkdir(exist_ok=True)
        FAILED.write_text(json.dumps(sorted({report.nodeid for report in reports})))


def main() -> int:
    if not FAILED.exists():
        print("the last run didn't reach its end, or nothing failed in it: see its output")
        return 1
    failed = json.loads(FAILED.read_text())
    code = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    if code in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        failed_again = json.loads(FAILED.read_text()) if code else []
        print("".join(f"FLAKY {name}\n" for name in failed if name not in failed_again), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
