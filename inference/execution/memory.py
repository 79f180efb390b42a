"""The size of a K/V cache, from the memory that is free."""

from __future__ import annotations

import os
from pathlib import Path
from weakref import WeakSet

from inference.errors import ModelRefusedError
from inference.execution.kv_cache import KVCache, KVSpec

MIN_TOKENS = 256  # a smaller cache isn't worth serving

_caches: WeakSet[KVCache] = WeakSet()  # of this process: memory that is promised to them but not in use yet


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes of memory can be allocated: the kernel's estimate, within a container's limit.

    Without an estimate it is half of all memory.
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


def make_cache(spec: KVSpec, *, tokens: int, max_tokens: int, block_size: int, share: float) -> KVCache:
    """Return a cache for `tokens` tokens, or with 0 for as many as fit into the memory, up to `max_tokens`.

    The memory is `share` of what is neither in use nor promised to other caches of this process. Raise
    `ModelRefusedError` when fewer than MIN_TOKENS fit.
    """
    if not tokens:
        free = max(0, available_bytes() - sum(cache.nbytes for cache in _caches))
        tokens = min(max_tokens, int(share * free) // spec.bytes_per_token)
        if tokens < min(max_tokens, MIN_TOKENS):
            needed = min(max_tokens, MIN_TOKENS) * spec.bytes_per_token
            raise ModelRefusedError(
                f"there is no room for its K/V: {min(max_tokens, MIN_TOKENS)} tokens take {needed / 1e6:.0f} MB, and "
                f"{share:.0%} of {free / 1e6:.0f} MB may be used"
            )
    cache = KVCache(spec, -(-tokens // block_size) + 1, block_size)
    _caches.add(cache)
    return cache
