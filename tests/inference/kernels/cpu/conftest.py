"""The C kernels, built for this processor's best level and in plain C; skipped with the reason where they can't be."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch

from inference.kernels.cpu.build import BuildError, best_level
from inference.kernels.cpu.library import Library, load

FOLDER = Path(tempfile.gettempdir()) / f"sluice-kernels-{os.getuid()}"  # one for all test processes: they build once


# This processor's best level, the one before where that has tiles (both compute in another order), and plain C.
TRIED = dict.fromkeys([best_level(), "avx512-bf16" if best_level() == "avx512-amx" else "plain", "plain"])


@pytest.fixture(scope="session", params=TRIED)
def library(request: pytest.FixtureRequest) -> Library:
    try:
        return load(FOLDER, request.param)
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
