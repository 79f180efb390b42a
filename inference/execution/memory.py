"""How much of this machine's memory K/V may take."""

from __future__ import annotations

import os
from pathlib import Path
from weakref import WeakSet

from inference.errors import ModelRefusedError
from inference.execution.kv_cache import KVCache, KVSpec

LEAST_TOKENS = 256  # a model that can't hold so many is of no use

_caches: WeakSet[KVCache] = WeakSet()  # of this process: each grows into its memory only with use


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that can still be had: the kernel's estimate, or what a container's limit leaves of it.

    Where the system gives no estimate, half of all memory.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        limit = (cgroups / "memory.max").read_text().strip()
        used = int((cgroups / "memory.current").read_text())
        cached = next(
            int(line.split()[1])
            for line in (cgroups / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
    except (OSError, StopIteration):
        return found
    return found if limit == "max" else max(0, min(found, int(limit) - used + cached))


def make_cache(spec: KVSpec, *, tokens: int, most: int, block_size: int, share: float) -> KVCache:
    """Return a cache for `tokens` tokens, or with 0 for as many as the memory at hand has room for, up to `most`.

    That is `share` of the memory that neither is in use nor was given to other caches of this process. Raise
    `ModelRefusedError` where it holds next to nothing.
    """
    if not tokens:
        room = max(0, available_bytes() - sum(cache.nbytes for cache in _caches))
        tokens = min(most, int(share * room) // spec.bytes_per_token)
        if tokens < min(most, LEAST_TOKENS):
            needed = min(most, LEAST_TOKENS) * spec.bytes_per_token
            raise ModelRefusedError(
                f"there is no room for its K/V: {min(most, LEAST_TOKENS)} tokens take {needed / 1e6:.0f} MB, and "
                f"{share:.0%} of {room / 1e6:.0f} MB may be used"
            )
    cache = KVCache(spec, -(-tokens // block_size) + 1, block_size)
    _caches.add(cache)
    return cache
