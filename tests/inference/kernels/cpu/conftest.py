"""The C kernels for each level that this machine can run; skipped with the reason where they can't be built."""

from __future__ import annotations

import pytest
import torch

from inference.kernels.cpu.build import BuildError
from inference.kernels.cpu.library import Library
from tests.inference.c_kernels import all_levels, load_kernels


@pytest.fixture(scope="session", params=all_levels())
def library(request: pytest.FixtureRequest) -> Library:
    try:
        return load_kernels(request.param, all_levels())
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
