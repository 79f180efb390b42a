"""Early pytest plugin: a home of its own for each run, and the database that ``--database`` names.

SLUICE_TEST_MODELS is where the first models are made, once for each run; set it to keep them between runs. Triton's
kernels run in its interpreter, on the CPU's tensors.

PostgreSQL is started from the system's binaries on a free port, once for all xdist workers, and stopped at the end.

With ``--dist loadgroup`` each folder of `TOGETHER` runs in one worker, from the start of the run on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Its tests share what takes long to start, and processes that shouldn't run twice at once.
TOGETHER = ("tests/browser/", "tests/stack/")


class ByFolder(LoadScopeScheduling):
    """Gives the tests of each folder of `TOGETHER` to one worker, the largest folder first, and every other by itself.

    xdist's own groups travel in the tests' ids, and pytest 9.2 keeps those as they are (pytest-xdist#1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFolder | None:
    """Choose who runs what, in the process that hands the tests out."""
    return ByFolder(config, log) if config.getvalue("dist") == "loadgroup" else None


SLOW_SECONDS = 900


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=["sqlite", "postgresql"], default="sqlite")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: Any, args: list[str]) -> None:
    """Set the environment before Django's settings are read; workers inherit it from the controller."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    home = tempfile.mkdtemp(prefix="sluice-tests-")
    os.environ["SLUICE_HOME"] = home
    # The kernels in C are built once for all runs: a home's folder of them is a link to one that stays.
    kernels = Path(tempfile.gettempdir()) / f"sluice-kernels-{os.getuid()}"
    kernels.mkdir(mode=0o700, exist_ok=True)
    (Path(home) / "cache").mkdir()
    (Path(home) / "cache" / "kernels").symlink_to(kernels)
    os.environ["SLUICE_ENV"] = "test"
    os.environ.setdefault("SLUICE_TEST_MODELS", f"{home}/first-models")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read where a kernel is defined; 0 runs them on a GPU
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the processor to others
    early_config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    if early_config.known_args_namespace.database == "postgresql":
        from tests.services.postgres import PostgresServer

        server = PostgresServer.start()
        early_config.add_cleanup(server.stop)
        os.environ["DATABASE_URL"] = server.url
    else:
        os.environ.pop("DATABASE_URL", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of processes and pages take longer than the others before they count as hung: machines can be slow."""
    for item in items:
        is_slow = item.get_closest_marker("stack") or item.get_closest_marker("browser")
        if is_slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
