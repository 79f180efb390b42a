"""Paged attention by torch's batched products against attention written out by hand."""

from __future__ import annotations

import pytest
import torch

from inference.execution.attention.products import ProductAttention
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.inputs import Packer
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from tests.inference.execution.attention.layouts import MIXED, Layout, by_hand, row


@pytest.mark.parametrize("scores", [1 << 22, 600])
@pytest.mark.parametrize("window", [0, 1, 9])
@pytest.mark.parametrize("extras", ["plain", "softcap", "sinks", "both"])
@pytest.mark.parametrize("shape", [(4, 4, 8, 8), (8, 2, 16, 16), (5, 1, 8, 12)])
def test_against_attention_by_hand(
    window: int, extras: str, shape: tuple[int, ...], scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.execution.attention.products.SCORES", scores)
    heads, kv_heads, key_dim, value_dim = shape
    layout = Layout.of(ProductAttention, heads, LayerShape(kv_heads, key_dim, value_dim), MIXED)
    options = {
        "scale": 0.3,
        "window": window,
        "softcap": 2.0 if extras in {"softcap", "both"} else 0.0,
        "sinks": torch.randn(heads) if extras in {"sinks", "both"} else None,
    }
    mixed = layout.attended(**options)
    torch.testing.assert_close(mixed.double(), layout.expected(**options), atol=2e-6, rtol=1e-5)


def test_large_scores_are_as_exact_as_by_the_fused_operator() -> None:
    """In bfloat16 a score of 20 is rounded by 0.06, which would be an error of six per cent of its weight."""
    errors = []
    for backend in (ReferenceAttention, ProductAttention):
        layout = Layout.of(backend, 4, LayerShape(2, 64, 64), [(1, 200), (16, 120), (1, 30)], dtype=torch.bfloat16)
        layout.queries = [query * 8 for query in layout.queries]
        wrong = layout.attended(scale=0.125).double() - layout.expected(scale=0.125)
        errors.append(wrong.square().mean().sqrt().item())
    assert errors[1] < 1.5 * errors[0]


def test_what_others_left_in_a_block_is_never_seen() -> None:
    """A sequence ends in a block of NaN, is resumed at every place, and loses drafts that gave NaN."""
    cache = KVCache(KVSpec((LayerShape(1, 4, 4),), torch.float32), 12, 4)
    for part in (cache.layers[0].keys, cache.layers[0].values):
        part[1:] = float("nan")
    attention = ProductAttention(cache, max_rows=2, max_blocks=5)
    packer = Packer(attention, max_tokens=20)
    torch.manual_seed(3)
    keys, values = torch.randn(20, 1, 4), torch.randn(20, 1, 4)
    other = torch.randn(20, 1, 4)
    # (start, tokens computed, of which the last are wrong drafts); beside another row, which makes a padded group
    for step, (start, count, wrong) in enumerate(
        [(0, 3, 0), (3, 1, 0), (4, 1, 0), (5, 4, 3), (6, 1, 0), (7, 1, 0), (8, 4, 2), (10, 1, 0), (0, 2, 0), (2, 1, 0)]
    ):
        end = start + count
        packer.pack([row(0, count, end, (3, 5, 2)), row(1, 1, step + 1, (7, 4, 6))])
        new = [part[start:end].clone() for part in (keys, values)]
        for part in new:
            part[count - wrong :] = float("nan")
        attention.store(0, *(torch.cat((part, other[step : step + 1])) for part in new))
        mixed = attention.attend(0, torch.cat((keys[start:end], other[:1])), scale=0.5)
        if not wrong:  # the wrong ones are in the row's own products, but in those of no later step
            expected = by_hand(keys[start:end], keys[:end], values[:end], start, scale=0.5)
            torch.testing.assert_close(mixed[:count].double(), expected, atol=1e-5, rtol=1e-5)
        assert torch.isfinite(mixed[-1]).all()
