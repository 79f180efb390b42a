"""Paged attention in plain torch against attention written out by hand over each sequence's own keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference.execution.attention.base import AttentionInputs
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.inputs import Packer
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from tests.inference.execution.attention.layouts import MIXED, Layout, row


@pytest.mark.parametrize("window", [0, 1, 9])
@pytest.mark.parametrize("extras", ["plain", "softcap", "sinks", "both"])
@pytest.mark.parametrize("shape", [(4, 4, 8, 8), (8, 2, 16, 16), (5, 1, 8, 12)])
def test_against_attention_by_hand(window: int, extras: str, shape: tuple[int, ...]) -> None:
    heads, kv_heads, key_dim, value_dim = shape
    layout = Layout.of(ReferenceAttention, heads, LayerShape(kv_heads, key_dim, value_dim), MIXED)
    options = {
        "scale": 0.3,
        "window": window,
        "softcap": 2.0 if extras in {"softcap", "both"} else 0.0,
        "sinks": torch.randn(heads) if extras in {"sinks", "both"} else None,
    }
    mixed = layout.attended(**options)
    torch.testing.assert_close(mixed.double(), layout.expected(**options), atol=2e-6, rtol=1e-5)


def test_padding_at_most_doubles_a_gather() -> None:
    lengths = [3, 100, 128, 200, 256, 257, 1000]
    layout = Layout.of(ReferenceAttention, 1, LayerShape(1, 4, 4), [(1, length) for length in reversed(lengths)])
    groups = layout.attention._groups
    assert [group.lengths.tolist() for group in groups] == [[3, 100, 128], [200, 256, 257], [1000]]


def test_long_rows_are_gathered_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.execution.attention.reference.GATHER_NUMBERS", 1000)
    layout = Layout.of(ReferenceAttention, 2, LayerShape(1, 4, 4), [(1, 90)] * 5)
    assert [len(group.lengths) for group in layout.attention._groups] == [2, 2, 1]
    torch.testing.assert_close(layout.attended(scale=0.5).double(), layout.expected(scale=0.5), atol=2e-6, rtol=1e-5)


def test_a_token_without_a_place_is_not_stored() -> None:
    layout = Layout.of(ReferenceAttention, 1, LayerShape(1, 4, 4), [(1, 5), (1, 6)])
    seen: list[AttentionInputs] = []
    prepare = layout.attention.prepare
    layout.attention.prepare = seen.append  # type: ignore[method-assign, assignment]
    Packer(layout.attention, max_tokens=2).pack(layout.rows)
    before = layout.attention.cache.layers[0].keys.nan_to_num().clone()
    prepare(replace(seen[0], places=torch.tensor([-1, -1])))
    layout.attention.store(0, torch.ones(2, 1, 4), torch.ones(2, 1, 4))
    assert torch.equal(layout.attention.cache.layers[0].keys.nan_to_num(), before)


def test_blocks_that_a_sequence_holds_for_later_are_not_read() -> None:
    """Admission takes the blocks of a whole prompt: others' K/V are in those that aren't computed yet."""
    cache = KVCache(KVSpec((LayerShape(1, 4, 4),), torch.float32), 12, 4)
    cache.layers[0].keys[1:] = float("nan")
    cache.layers[0].values[1:] = float("nan")
    attention = ReferenceAttention(cache, max_rows=2, max_blocks=5)
    packer = Packer(attention, max_tokens=20)
    first, second = row(0, 9, 9, (1, 2, 3)), row(1, 1, 1, (4, 5, 6))
    for step in ([first], [second], [row(0, 1, 10, first.blocks), row(1, 1, 2, second.blocks)]):
        batch = packer.pack(step)
        new = torch.ones(len(batch.ids), 1, 4)
        attention.store(0, new, new)
        assert torch.equal(attention.attend(0, new, scale=1.0), new)
