"""K/V is sized from the memory at hand, and what was given to one model isn't given to the next."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.execution import memory
from inference.execution.kv_cache import KVSpec, LayerShape
from inference.execution.memory import available_bytes, make_cache

SPEC = KVSpec((LayerShape(2, 8, 8),) * 4, torch.float32)  # 512 bytes a token


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # caches of other tests
    monkeypatch.setattr(memory, "_caches", memory.WeakSet())
    monkeypatch.setattr(memory, "available_bytes", lambda: 10_000_000)


def test_a_cache_takes_its_share_of_what_is_free_and_the_next_of_what_is_left() -> None:
    first = make_cache(SPEC, tokens=0, max_tokens=10**9, block_size=16, share=0.5)
    assert first.blocks == -(-9765 // 16) + 1
    second = make_cache(SPEC, tokens=0, max_tokens=10**9, block_size=16, share=0.5)
    assert second.blocks < 0.52 * first.blocks
    del first
    gc.collect()
    assert make_cache(SPEC, tokens=0, max_tokens=10**9, block_size=16, share=0.5).blocks > second.blocks


@pytest.mark.slow
def test_as_many_tokens_more_as_eight_bits_leave_room_for() -> None:
    layers = (LayerShape(8, 128, 128),) * 4
    kept = []
    for dtype in (torch.bfloat16, torch.int8):
        cache = make_cache(KVSpec(layers, dtype), tokens=0, max_tokens=10**9, block_size=16, share=0.5)
        kept.append((cache.blocks - 1) * 16)
        del cache
        gc.collect()
    assert kept[1] / kept[0] == pytest.approx(512 / 264, rel=0.1)


def test_no_more_than_can_be_used_and_what_the_operator_says() -> None:
    assert make_cache(SPEC, tokens=0, max_tokens=1000, block_size=16, share=0.5).blocks == 64
    assert make_cache(SPEC, tokens=160, max_tokens=1000, block_size=16, share=0.5).blocks == 11
    assert make_cache(SPEC, tokens=0, max_tokens=100, block_size=16, share=0.01).blocks == 8, "few are all it can use"


def test_a_model_without_room_is_refused() -> None:
    with pytest.raises(ModelRefusedError, match="no room for its K/V"):
        make_cache(SPEC, tokens=0, max_tokens=4096, block_size=16, share=0.01)


def test_the_context_that_is_announced_is_the_one_that_fits(tmp_path: Path) -> None:
    from inference.architectures.load import load_model
    from inference.local.engine import LocalEngine
    from tests.inference.tiny import save_tiny

    config = EngineConfig("test", str(save_tiny("llama", tmp_path)), dtype="float32", options={"cache": str(tmp_path)})
    loaded = load_model(config, threads=1, kv_share=0.06)
    bytes_per_token = 3 * 2 * 2 * 16 * 4
    assert (loaded.kv_blocks - 1) * 16 == -(-(600_000 // bytes_per_token) // 16) * 16
    engine = LocalEngine(config, loaded)
    assert engine.info.max_context == min(512, (loaded.kv_blocks - 1) * 16)
    small = load_model(config, threads=1, kv_share=0.03)
    info = LocalEngine(config, small).info
    assert info.max_context == (small.kv_blocks - 1) * 16 < 512
    assert info.max_input == info.max_context - 1
    assert "of the model's 512" in small.details["context"]


def test_available_memory_is_the_kernels_estimate_within_a_containers_limit(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    groups = tmp_path / "cgroup"
    assert available_bytes(tmp_path, groups) == 51_200
    groups.mkdir()
    (groups / "memory.max").write_text("40000\n")
    (groups / "memory.current").write_text("30000\n")
    (groups / "memory.stat").write_text("anon 1\ninactive_file 5000\n")
    assert available_bytes(tmp_path, groups) == 15_000
    (groups / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path, groups) == 51_200
    assert available_bytes(tmp_path / "none", groups) > 0
