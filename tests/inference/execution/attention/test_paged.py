"""Paged attention against attention written out by hand over each sequence's own keys and values."""

from __future__ import annotations

import random

import pytest
import torch

from inference.core.step import Row
from inference.execution.attention.paged import attend
from inference.execution.inputs import pack
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.types import SamplingParams

BLOCK = 4
MIXED = [(1, 1), (1, 40), (5, 18), (1, 500), (23, 23), (7, 130), (1, 3), (1, 17), (2, 2)]  # new tokens, context


def plain(query, key, value, start, *, scale, window, softcap, sinks):
    """One sequence: query [n, heads, d] at positions start…, key and value [length, kv_heads, d]; float64."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    out = torch.zeros(query.shape[0], query.shape[1], value.shape[2], dtype=torch.float64)
    for head in range(query.shape[1]):
        for i in range(query.shape[0]):
            position = start + i
            first = max(0, position - window + 1) if window else 0
            scores = key[first : position + 1, head // group] @ query[i, head] * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1].double()))
            weights = torch.softmax(scores, 0)[: position + 1 - first]
            out[i, head] = weights @ value[first : position + 1, head // group]
    return out


@pytest.mark.parametrize("window", [0, 1, 9])
@pytest.mark.parametrize("extras", ["plain", "softcap", "sinks", "both"])
@pytest.mark.parametrize("shape", [(4, 4, 8, 8), (8, 2, 16, 16), (5, 1, 8, 12)])
def test_against_attention_by_hand(window: int, extras: str, shape: tuple[int, ...]) -> None:
    heads, kv_heads, key_dim, value_dim = shape
    chance = random.Random(1)
    torch.manual_seed(1)
    counts = [-(-length // BLOCK) for _, length in MIXED]
    free = list(range(1, sum(counts) + 1))
    chance.shuffle(free)
    cache = KVCache(KVSpec((LayerShape(kv_heads, key_dim, value_dim),), torch.float32), len(free) + 1, BLOCK)
    layer = cache.layers[0]
    # What others left in the blocks, beyond a sequence's own length too, must not be seen: not even as 0 · NaN.
    layer.keys[1:] = float("nan")
    layer.values[1:] = float("nan")
    rows, held = [], []
    for number, ((new, length), count) in enumerate(zip(MIXED, counts, strict=True)):
        blocks = tuple(free.pop() for _ in range(count))
        start = length - new
        rows.append(Row(number, str(number), (0,) * new, start, blocks, False, 0, SamplingParams(), 0))
        key, value = torch.randn(length, kv_heads, key_dim), torch.randn(length, kv_heads, value_dim)
        held.append((key, value, torch.randn(new, heads, key_dim)))
        places = torch.tensor([blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start)], dtype=torch.long)
        layer.store(places, key[:start], value[:start])
    batch = pack(rows, BLOCK)
    order = sorted(
        range(len(rows)), key=lambda i: (len(rows[i].ids) > 1, rows[i].start if len(rows[i].ids) == 1 else 0)
    )
    assert batch.positions.tolist() == [rows[i].start + j for i in order for j in range(len(rows[i].ids))]
    layer.store(
        batch.attention.places,
        torch.cat([held[i][0][rows[i].start :] for i in order]),
        torch.cat([held[i][1][rows[i].start :] for i in order]),
    )
    options = {
        "scale": 0.3,
        "window": window,
        "softcap": 2.0 if extras in {"softcap", "both"} else 0.0,
        "sinks": torch.randn(heads) if extras in {"sinks", "both"} else None,
    }
    mixed = attend(torch.cat([held[i][2] for i in order]), layer, batch.attention, **options)
    expected = torch.cat([plain(held[i][2], held[i][0], held[i][1], rows[i].start, **options) for i in order])
    torch.testing.assert_close(mixed.double(), expected, atol=2e-6, rtol=1e-5)


def test_padding_at_most_doubles_a_gather() -> None:
    lengths = [3, 100, 128, 200, 256, 257, 1000]
    rows = [
        Row(i, str(i), (0,), n - 1, tuple(range(1, 252)), True, 0, SamplingParams(), 0) for i, n in enumerate(lengths)
    ]
    groups = pack(rows, BLOCK).attention.groups
    assert [group.lengths.tolist() for group in groups] == [[3, 100, 128], [200, 256, 257], [1000]]


def test_what_is_sampled_keeps_its_row() -> None:
    rows = [
        Row(0, "a", (7, 8), 0, (1,), True, 0, SamplingParams(), 0),
        Row(1, "b", (9,), 5, (2, 3), True, 0, SamplingParams(), 0),
        Row(2, "c", (1, 2, 3), 0, (4,), False, 0, SamplingParams(), 0),
        Row(3, "d", (6,), 2, (5,), True, 0, SamplingParams(), 0),
    ]
    batch = pack(rows, BLOCK)
    assert batch.order == (3, 1, 0)
    assert batch.ids[batch.sampled].tolist() == [6, 9, 8]
    assert batch.positions[batch.sampled].tolist() == [2, 5, 1]
    assert batch.attention.places.tolist() == [22, 13, 4, 5, 16, 17, 18]
