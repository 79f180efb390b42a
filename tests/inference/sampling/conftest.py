"""The passes over logits, by torch's operators and by the CPU's kernels, where those can be built."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from inference.kernels.cpu.build import BuildError
from inference.kernels.cpu.library import load
from inference.sampling.cpu_passes import CPUPasses
from inference.sampling.passes import Passes
from inference.sampling.torch_passes import TorchPasses


@pytest.fixture(params=["torch", "kernels"])
def passes(request: pytest.FixtureRequest) -> Passes:
    if request.param == "torch":
        return TorchPasses()
    try:
        return CPUPasses(load(Path(tempfile.gettempdir()) / f"sluice-kernels-{os.getuid()}"))
    except BuildError as error:
        pytest.skip(str(error))
