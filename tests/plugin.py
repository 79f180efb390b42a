"""Early pytest plugin: a home and a PostgreSQL server for each run, and which worker runs which tests.

SLUICE_TEST_MODELS is where the first models are made, once for each run; set it to keep them between runs. Triton's
kernels run in its interpreter, on the CPU's tensors. PostgreSQL is started from the system's binaries, once for all
xdist workers, and stopped at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

CHAT = ("tests/browser/test_chat", "tests/browser/test_conversations")
TOGETHER = (("tests/stack/embedded/",), ("tests/stack/cluster/",), CHAT, ("tests/browser/",))
"""Tests, by the beginnings of their names, that share what takes long to start: one worker runs all of a group, from
the start of the run on. Those in a browser are two, of about the same length: each has a site of its own.
"""


def scope_of(nodeid: str) -> str:
    """Return the name of what runs in one worker with that test: its group of `TOGETHER`, or its file."""
    return next((group[0] for group in TOGETHER if nodeid.startswith(group)), nodeid.partition("::")[0])


class ByFile(LoadScopeScheduling):
    """Gives a worker one file or group at a time, in the order in which they are collected."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Choose who runs what, in the process that hands the tests out."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


SLOW_SECONDS = 900


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        choices=["chosen", "both", "sqlite"],
        default="chosen",
        help="for tests marked `money`: PostgreSQL (chosen), both databases, or SQLite alone for every test",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: Any, args: list[str]) -> None:
    """Set the environment before Django's settings are read; workers inherit it from the controller."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    # Without the bytecode of the run before, each of the processes that tests start would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    home = tempfile.mkdtemp(prefix="sluice-tests-")
    os.environ["SLUICE_HOME"] = home
    # The kernels in C are built once for all runs: a home's folder of them is a link to one that stays.
    kernels = Path(tempfile.gettempdir()) / f"sluice-kernels-{os.getuid()}"
    kernels.mkdir(mode=0o700, exist_ok=True)
    (Path(home) / "cache").mkdir()
    (Path(home) / "cache" / "kernels").symlink_to(kernels)
    os.environ["SLUICE_ENV"] = "test"
    os.environ |= dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")  # clients obey a proxy, and so do SDKs
    os.environ.setdefault("SLUICE_TEST_MODELS", f"{home}/first-models")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read where a kernel is defined; 0 runs them on a GPU
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the processor to others
    early_config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    os.environ.pop("DATABASE_URL", None)
    if early_config.known_args_namespace.database != "sqlite":
        from tests.services.postgres import PostgresServer

        server = PostgresServer.start()
        early_config.add_cleanup(server.stop)
        os.environ["SLUICE_TEST_POSTGRES"] = server.url


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the tables whose rows tests recorded: `record_property("row", [title, line])`."""
    tables: dict[str, list[str]] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if getattr(report, "when", "") == "call":
            for name, value in report.user_properties:
                if name == "row":
                    tables.setdefault(value[0], []).append(value[1])
    for title, lines in tables.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker is left alone with it at the end, and let tests of processes and
    pages take longer than others before they count as hung: machines can be slow.
    """
    if items and items[0].config.getoption("database") == "sqlite":
        items[:] = [item for item in items if not item.get_closest_marker("postgresql")]
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    processes = ("tests/stack/", "tests/browser/")

    def how_late(item: pytest.Item) -> tuple[bool, bool, bool]:
        is_shared = any(item.nodeid.startswith(group) for group in TOGETHER)
        has_processes = item.nodeid.startswith(processes)
        return not is_shared, not has_processes, item.path not in slow_files

    items.sort(key=how_late)
    for item in items:
        is_slow = item.get_closest_marker("stack") or item.get_closest_marker("browser")
        if is_slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
