"""The passes over logits, by torch's operators and by the CPU's kernels, where those can be built."""

from __future__ import annotations

import pytest

from inference.kernels.build import BuildError
from inference.sampling.cpu_passes import CPUPasses
from inference.sampling.passes import Passes
from inference.sampling.torch_passes import TorchPasses
from tests.inference.c_kernels import load_kernels


@pytest.fixture(params=["torch", "kernels"])
def passes(request: pytest.FixtureRequest) -> Passes:
    if request.param == "torch":
        return TorchPasses()
    try:
        return CPUPasses(load_kernels())
    except BuildError as error:
        pytest.skip(str(error))
