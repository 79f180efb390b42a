"""What the machine itself can do: how fast memory is read, and how fast torch multiplies matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

BYTES = 1 << 29


def median_seconds(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Return the median time of `call`, repeated for `seconds` and at least five times."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def bandwidth() -> float:
    """Return how many GB of memory all threads read in a second, one after the other address."""
    numbers = torch.zeros(BYTES // 4)
    return BYTES / median_seconds(numbers.sum) / 1e9


def matmul_rate(dtype: torch.dtype, size: int = 2048) -> float:
    """Return GFLOP/s of a square product in `dtype`."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2 * size**3 / median_seconds(lambda: a @ b) / 1e9
