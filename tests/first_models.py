"""The models of the first run, made once for a whole run of tests."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from inference.sources import first_models

DESK, DESK_LABELS = "sluice-desk", "sluice-desk-labels"
SPECIALISTS = first_models.specialists(Path(__file__).resolve().parents[1] / "desk/specialists")


def made() -> dict[str, Path]:
    """Return the first models' folders by name, in what SLUICE_TEST_MODELS names; skip the test without their packages.

    Test processes take turns, so that each model is converted once.
    """
    if first_models.missing():
        pytest.skip("the first models' packages are not installed")
    home = Path(os.environ["SLUICE_TEST_MODELS"])
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return first_models.install(home, SPECIALISTS)
