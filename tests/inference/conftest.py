"""What several tests of the engine ask for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from inference.architectures.load import kernel_folder
from inference.architectures.tiers import choose
from inference.guidance import checking, grammars
from inference.kernels.build import BuildError
from tests.inference.c_kernels import load_kernels


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Compute on one thread: small models are faster so, sums have one order, and others run on the cores beside."""
    torch.set_num_threads(1)
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None and not hasattr(interpreter, "looks_once"):
        _let_look_once(interpreter)


def _let_look_once(interpreter: Any) -> None:
    """Let Triton's interpreter remember what it replaces in its language: it looked at each call of a function, which
    was a third of the time that kernels took.
    """

    @cache
    def builtins_of(package: Any) -> list[tuple[str, Any]]:
        return [named for named in inspect.getmembers(package) if interpreter.tl.core.is_builtin(named[1])]

    def replace(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins_of(package):
            if getattr(package, name) is member:  # not replaced by the kernel that calls this function
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin, interpreter.looks_once = replace, True


@pytest.fixture(autouse=True, scope="session")
def _patience() -> Iterator[None]:
    """Judge the compiling of grammars by the processor's time alone: others may take the processor meanwhile."""
    with patch.object(checking, "WALL_SECONDS", 120.0), patch.object(checking, "START_SECONDS", 120.0):
        yield


@pytest.fixture(scope="session")
def c_kernels() -> None:
    """Have the kernels in C; skip the test where models don't run on them."""
    with suppress(BuildError):
        load_kernels()
    tier = choose(torch.float32, kernel_folder()).tier
    if not tier.startswith("C kernels"):
        pytest.skip(tier)


@pytest.fixture(scope="module")
def one_checker() -> Iterator[None]:
    """Let a module's engines, which run in one thread, share the process that compiles grammars."""
    with patch.object(grammars, "Checker", cache(checking.Checker)):
        yield
