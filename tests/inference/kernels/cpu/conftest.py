"""The C kernels, built for this processor's best level, for tiles and in plain C; skipped with the reason where they
can't be.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
import torch

from inference.kernels.cpu.build import LEVELS, BuildError, best_level, processor_flags
from inference.kernels.cpu.library import Library, load

FOLDER = Path(tempfile.gettempdir()) / f"sluice-kernels-{os.getuid()}"  # one for all test processes: they build once

EMULATED = "avx512-emulated"  # tiles (AMX) in plain C, the rest for any processor with AVX-512


def _levels() -> list[str]:
    """Return the best level here, plain C, and tiles: the processor's beside vectors (they sum in another order), or
    emulated ones.
    """
    best = best_level()
    if best == "avx512-amx":
        return [best, "avx512-bf16", "plain"]
    tiles = [EMULATED] if processor_flags().issuperset(LEVELS["avx512"][1]) else []
    return list(dict.fromkeys([best, *tiles, "plain"]))


@pytest.fixture(scope="session", params=_levels())
def library(request: pytest.FixtureRequest) -> Library:
    if request.param == EMULATED:
        header = Path(__file__).parent / "tiles_emulated.h"
        state = hashlib.sha256(header.read_bytes()).hexdigest()  # built anew when it changes
        flags, needed = LEVELS["avx512"]
        LEVELS[EMULATED] = ((*flags, "-include", str(header), f"-DSTATE_{state}", "-DBLOCK=8192"), needed)
    try:
        return load(FOLDER, request.param)
    except BuildError as error:
        pytest.skip(str(error))
    finally:
        LEVELS.pop(EMULATED, None)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
