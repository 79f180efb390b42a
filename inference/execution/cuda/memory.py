"""The size of a K/V cache on a GPU, from what a step leaves free."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from inference.errors import ModelRefusedError
from inference.execution.kv_cache import KVCache, KVSpec

SHARE = 0.9  # of what is free: captured graphs and fragments take from the rest


@dataclass(frozen=True, slots=True)
class Room:
    """What a full step needs beyond the weights (`peak`), and what was `free` before it; bytes."""

    free: int
    peak: int

    def blocks(self, spec: KVSpec, block_size: int, *, tokens: int, max_tokens: int) -> int:
        """Return how many blocks to make, the null block included: for `tokens`, or with 0 for what fits.

        That is SHARE of what the largest step leaves, and no more than `max_tokens` tokens. Raise ModelRefusedError
        when not even one full block fits.
        """
        most = int(SHARE * max(0, self.free - self.peak)) // (spec.bytes_per_token * block_size) - 1
        wanted = -(-(tokens or max_tokens) // block_size)
        if most < 1 or (tokens and most < wanted):
            need = wanted if tokens else 1
            raise ModelRefusedError(
                f"there is no room for its K/V: {need * block_size} tokens take "
                f"{need * block_size * spec.bytes_per_token / 1e6:.0f} MB, and of {self.free / 1e6:.0f} MB free a step "
                f"takes {self.peak / 1e6:.0f}"
            )
        return min(most, wanted) + 1


def stored_in(spec: KVSpec, kv_dtype: str) -> KVSpec:
    """Return `spec` with the dtype that K/V are stored in: "fp8" float8_e4m3fn, "auto" the model's."""
    return replace(spec, dtype=torch.float8_e4m3fn) if kv_dtype == "fp8" else spec


def small_cache(spec: KVSpec, tokens: int, block_size: int, device: torch.device) -> KVCache:
    """Return a cache that holds a step of `tokens`, for measuring it."""
    return KVCache(spec, -(-tokens // block_size) + 1, block_size, device)


def measured(device: torch.device) -> Room:
    """Return the room that is left, after a largest step ran since the last `torch.cuda.reset_peak_memory_stats`."""
    peak = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return Room(free, peak)
