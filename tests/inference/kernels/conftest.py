"""The C kernels for each level that this machine can run; skipped with the reason where they can't be built."""

from __future__ import annotations

import pytest
import torch

from inference.kernels.build import LEVELS, BuildError, lacking
from inference.kernels.library import Library
from tests.inference.c_kernels import all_levels, load_kernels

OTHERS = [pytest.param(level, marks=pytest.mark.slow) for level in LEVELS if level not in all_levels()]


@pytest.fixture(scope="session", params=[*all_levels(), *OTHERS])
def library(request: pytest.FixtureRequest) -> Library:
    level = request.param
    if level in LEVELS and (missing := lacking(level)):
        pytest.skip(f"this processor hasn't {missing}")
    try:
        return load_kernels(level, all_levels() if level in all_levels() else ())
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
