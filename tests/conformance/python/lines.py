"""The lines of one client in Python: what it should be able to do, each a function that raises where it can't.

A line's outcome is printed as a line of JSON. SLUICE_URL (without /v1) and SLUICE_KEY say where the gateway is.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

URL = os.environ["SLUICE_URL"]
BASE_URL = f"{URL}/v1"
KEY = os.environ["SLUICE_KEY"]
SECONDS = 180

_lines: dict[str, Callable[[], Any]] = {}


def line(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a function, plain or async, to what is run, under this name."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        assert name not in _lines, name
        _lines[name] = function
        return function

    return add


def check(found: Any, wanted: Any) -> None:
    """Raise AssertionError that tells both unless they are equal."""
    assert found == wanted, f"{found!r} isn't {wanted!r}"


def skip(why: str) -> NoReturn:
    """End the program: this machine lacks what its lines need."""
    print(json.dumps({"skipped": why}), flush=True)
    sys.exit(0)


def run() -> None:
    """Run every line, or those that the command line names, and print their outcomes."""
    asked = sys.argv[1:]
    for name, function in _lines.items():
        if asked and name not in asked:
            continue
        # On a line of its own, whatever the client printed.
        print("\n" + json.dumps({"line": name, "error": _error(function)}), flush=True)


def _error(function: Callable[[], Any]) -> str | None:
    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        if inspect.iscoroutinefunction(function):
            asyncio.run(function())
        else:
            function()
    except BaseException as error:  # noqa: BLE001 - a line must not end those behind it, however it fails
        if len(sys.argv) > 1:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return None
