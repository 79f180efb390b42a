"""The K/V tensors of a model."""

from __future__ import annotations

from pathlib import Path

import torch

from inference.execution.kv_cache import KVCache, KVSpec, LayerShape


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_taken_as_blocks_are_written() -> None:
    before = resident()
    cache = KVCache(KVSpec((LayerShape(8, 64, 64),) * 4, torch.bfloat16), 8193, 16)
    assert cache.nbytes > 1 << 30
    assert resident() - before < 64 << 20
    last = cache.layers[-1].values[-1]
    assert not last.any()
    last.fill_(1)
    assert resident() - before < 64 << 20
    assert last.sum() == last.numel()
