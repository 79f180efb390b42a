"""Rows over scattered blocks that others have used, with their keys and values by sequence; attention by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from inference.core.step import Row
from inference.execution.attention.base import Attention
from inference.execution.inputs import Packer, StepBatch
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.types import SamplingParams

BLOCK = 4
MIXED = [(1, 1), (1, 40), (5, 18), (1, 500), (23, 23), (7, 130), (1, 3), (1, 17), (2, 2)]  # new tokens, context


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, start: int, **options: Any) -> torch.Tensor:
    """One sequence: query [n, heads, d] at positions start…, key and value [length, kv_heads, d]; float64."""
    window, softcap, sinks = options.get("window", 0), options.get("softcap", 0.0), options.get("sinks")
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    out = torch.zeros(query.shape[0], query.shape[1], value.shape[2], dtype=torch.float64)
    for head in range(query.shape[1]):
        for i in range(query.shape[0]):
            position = start + i
            first = max(0, position - window + 1) if window else 0
            scores = key[first : position + 1, head // group] @ query[i, head] * options["scale"]
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1].double()))
            weights = torch.softmax(scores, 0)[: position + 1 - first]
            out[i, head] = weights @ value[first : position + 1, head // group]
    return out


def row(number: int, new: int, length: int, blocks: tuple[int, ...], **more: Any) -> Row:
    return Row(number, str(number), (0,) * new, length - new, blocks, False, 0, SamplingParams(), 0, **more)


@dataclass
class Layout:
    """A step of rows (new tokens, context); `keys`, `values` and `queries` by row, the K/V of the past stored."""

    attention: Attention
    rows: list[Row]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    queries: list[torch.Tensor]
    batch: StepBatch

    @classmethod
    def of(
        cls,
        backend: type[Attention],
        heads: int,
        shape: LayerShape,
        rows: list[tuple[int, int]],
        *,
        dtype: torch.dtype = torch.float32,
        block: int = BLOCK,
    ) -> Layout:
        chance = random.Random(1)
        torch.manual_seed(1)
        counts = [-(-length // block) for _, length in rows]
        free = list(range(1, sum(counts) + 1))
        chance.shuffle(free)
        cache = KVCache(KVSpec((shape,), dtype), len(free) + 1, block)
        layer = cache.layers[0]
        # What others left in the blocks, beyond a sequence's own length too, must not be seen: not even as 0 · NaN.
        layer.keys[1:] = float("nan")
        layer.values[1:] = float("nan")
        attention = backend(cache, max_rows=len(rows), max_blocks=max(counts))
        packed, keys, values, queries = [], [], [], []
        for number, ((new, length), count) in enumerate(zip(rows, counts, strict=True)):
            blocks = tuple(free.pop() for _ in range(count))
            packed.append(row(number, new, length, blocks))
            keys.append(torch.randn(length, shape.kv_heads, shape.key_dim).to(dtype))
            values.append(torch.randn(length, shape.kv_heads, shape.value_dim).to(dtype))
            queries.append(torch.randn(new, heads, shape.key_dim).to(dtype))
            for position in range(length - new):
                place = (blocks[position // block], slice(None), position % block)
                layer.keys[place], layer.values[place] = keys[-1][position], values[-1][position]
        batch = Packer(attention, max_tokens=sum(new for new, _ in rows)).pack(packed)
        return cls(attention, packed, keys, values, queries, batch)

    def attended(self, **options: Any) -> torch.Tensor:
        """Store the step's own K/V and attend."""
        starts = [row.start for row in self.rows]
        self.attention.store(
            0,
            torch.cat([key[start:] for key, start in zip(self.keys, starts, strict=True)]),
            torch.cat([value[start:] for value, start in zip(self.values, starts, strict=True)]),
        )
        return self.attention.attend(0, torch.cat(self.queries), **options)

    def expected(self, **options: Any) -> torch.Tensor:
        """The same by hand, in float64."""
        parts = zip(self.queries, self.keys, self.values, self.rows, strict=True)
        return torch.cat([by_hand(query, key, value, row.start, **options) for query, key, value, row in parts])
