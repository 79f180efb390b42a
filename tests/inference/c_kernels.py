"""The kernels in C, built once for all test processes and for later runs."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from inference.architectures.load import kernel_folder
from inference.kernels.build import LEVELS, BuildError, best_level, build, processor_flags
from inference.kernels.library import Library, load

EMULATED = "avx512-emulated"  # tiles (AMX) in plain C, the rest for any processor with AVX-512
_TILES = Path(__file__).parent / "kernels" / "tiles_emulated.h"


@cache
def load_kernels(level: str = "", beside: Iterable[str] = ()) -> Library:
    """Return the library for `level` (default: this processor's best); raise BuildError with the reason if there is
    none. What isn't built yet of `level` and of the levels `beside` is built at once, by one process.
    """
    folder = kernel_folder()
    with _lock(folder), _emulation(), ThreadPoolExecutor() as pool:
        for _ in pool.map(_build, {level or best_level(), *beside}):
            pass
        return load(folder, level)


def all_levels() -> tuple[str, ...]:
    """Return the best level here, plain C, and tiles: the processor's beside vectors (they sum in another order), or
    emulated ones.
    """
    best = best_level()
    if best == "avx512-amx":
        return best, "avx512-bf16", "plain"
    tiles = [EMULATED] if processor_flags().issuperset(LEVELS["avx512"][1]) else []
    return tuple(dict.fromkeys([best, *tiles, "plain"]))


def _build(level: str) -> None:
    with suppress(BuildError):  # `load` says what is wrong, or takes another level
        build(kernel_folder(), level)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _emulation() -> Iterator[None]:
    state = hashlib.sha256(_TILES.read_bytes()).hexdigest()  # built anew when it changes
    flags, needed = LEVELS["avx512"]
    LEVELS[EMULATED] = ((*flags, "-include", str(_TILES), f"-DSTATE_{state}", "-DBLOCK=8192"), needed)
    yield
    del LEVELS[EMULATED]
