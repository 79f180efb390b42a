"""Where a run's time goes: the slowest files at its end, and all of them in the file that ``--times`` names."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 10

Times = dict[str, list[float]]  # cases, wall seconds and processor seconds by test file
_TIMES = pytest.StashKey[Times]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE", help="write cases, wall and processor seconds by test file to FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TIMES] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test with its fixtures: this process, and its children that ended meanwhile."""
    wall, processor = time.perf_counter(), _processor()
    result = yield
    spent = {item.nodeid.partition("::")[0]: [1, time.perf_counter() - wall, _processor() - processor]}
    _add(item.config.stash[_TIMES], spent)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's times to the process that prints them."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["times"] = session.config.stash[_TIMES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's times; one that crashed has none."""
    _add(node.config.stash[_TIMES], getattr(node, "workeroutput", {}).get("times", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    times = config.stash[_TIMES]
    slowest = sorted(times.items(), key=lambda entry: -entry[1][1])
    if path := config.getoption("times"):
        lines = [f"{name}\t{cases:.0f}\t{wall:.2f}\t{processor:.2f}\n" for name, (cases, wall, processor) in slowest]
        Path(path).write_text("".join(lines), encoding="utf-8")
    if sum(spent[0] for spent in times.values()) > SHOWN:
        terminalreporter.section(f"the {SHOWN} slowest files: wall s, processor s, cases")
        for name, (cases, wall, processor) in slowest[:SHOWN]:
            terminalreporter.write_line(f"{wall:7.1f} {processor:7.1f} {cases:5.0f}  {name}")


def _add(times: Times, spent: Times) -> None:
    for name, values in spent.items():
        times[name] = [a + b for a, b in zip(times.get(name, [0, 0, 0]), values, strict=True)]


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
