"""What several tests of the engine ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from unittest.mock import patch

import pytest
import torch

from inference.architectures.load import kernel_folder
from inference.execution.tiers import choose
from inference.guidance import checking, grammars
from inference.kernels.cpu.build import BuildError
from tests.inference.c_kernels import load_kernels


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Compute on one thread: small models are faster so, sums have one order, and others run on the cores beside."""
    torch.set_num_threads(1)


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
