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


def test_eight_bits_take_their_bytes_and_a_scale_for_each_head() -> None:
    layers = (LayerShape(8, 128, 128), LayerShape(2, 64, 32))
    wide, narrow = KVSpec(layers, torch.bfloat16), KVSpec(layers, torch.int8)
    assert narrow.bytes_per_token == 8 * 256 + 2 * 96 + 2 * (8 + 2) * 4
    assert KVSpec(layers[:1], torch.bfloat16).bytes_per_token / KVSpec(layers[:1], torch.int8).bytes_per_token > 1.93
    assert KVCache(wide, 4, 16).layers[0].scales is None
    cache = KVCache(narrow, 4, 16)
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values, *(layer.scales or ()))]
    assert cache.nbytes == sum(part.nbytes for part in parts)
