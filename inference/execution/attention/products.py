"""Attention over paged K/V by torch's batched products alone: for CPUs without own kernels.

torch's fused attention takes five times as long here for one query of a row, and three times for a chunk of a prompt,
as products and a softmax do; the scores in between have the dtype of K/V.
"""

from __future__ import annotations

import numpy as np
import torch

from inference.execution.attention.base import AttentionInputs
from inference.execution.attention.reference import Group, ReferenceAttention
from inference.execution.kv_cache import KVCache

SCORES = 1 << 22  # that are computed together at most: more wouldn't stay in the processor's cache


class ProductAttention(ReferenceAttention):
    """Attention by batched products. Scores with softcap or sinks are computed as the reference does."""

    name = "torch products"

    def __init__(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> None:
        super().__init__(cache, max_rows=max_rows, max_blocks=max_blocks)
        self._reach = np.zeros(max_rows, np.int64)  # up to where each slot's last row went
        self._nothing = torch.zeros(1, 1, 1, dtype=cache.spec.dtype)
        self._lines: dict[int, torch.Tensor] = {}
        self._cleared: dict[int, torch.Tensor] = {}
        self._places = self._tails = torch.empty(0, dtype=torch.long)
        self._biases: dict[tuple[int, ...], torch.Tensor | None] = {}

    def prepare(self, inputs: AttentionInputs) -> None:
        super().prepare(inputs)
        self._places = inputs.places if self._stored is None else inputs.places[self._stored]
        self._tails = self._behind(inputs)
        self._lines, self._cleared, self._biases = {}, {}, {}

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if self._stored is not None:
            key, value = key[self._stored], value[self._stored]
        cached = self.cache.layers[layer]
        heads = cached.shape.kv_heads
        if heads not in self._lines:
            self._lines[heads] = self._of_heads(self._places, heads)
            self._cleared[heads] = self._of_heads(self._tails, heads)
        for source, kept in ((key, cached.keys), (value, cached.values)):
            lines = kept.view(-1, kept.shape[-1])
            if len(self._tails):
                lines.index_fill_(0, self._cleared[heads], 0)
            lines.index_copy_(0, self._lines[heads], source.reshape(-1, kept.shape[-1]))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if softcap or sinks is not None:
            return super().attend(layer, query, scale=scale, window=window, softcap=softcap, sinks=sinks)
        width = self.cache.layers[layer].shape.value_dim
        out = query.new_empty(*query.shape[:2], width)
        for number, group in enumerate(self._groups):
            keys, values = self._gather(layer, group)
            if isinstance(group.tokens, slice):
                self._attend_alone(number, query[group.tokens], keys[0], values[0], scale, window, out[group.tokens])
                continue
            rows, heads = keys.shape[:2]
            queries = query.index_select(0, group.tokens).view(rows * heads, -1, query.shape[2])
            bias = self._bias(number, heads, window)
            mixed = self._mix(queries, keys.flatten(0, 1), values.flatten(0, 1), scale, bias)
            out.index_copy_(0, group.tokens, mixed.view(rows, -1, width))
        return out

    def _attend_alone(
        self,
        number: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int,
        out: torch.Tensor,
    ) -> None:
        """Write to `out` what the queries of one row attend to; few scores at once are in memory."""
        heads = keys.shape[0]
        each = query.shape[1] // heads
        most = max(1, SCORES // (query.shape[1] * keys.shape[1]))
        tokens, results = query.view(len(query), heads, each, -1), out.view(len(query), heads, each, -1)
        for begin in range(0, len(query), most):
            part = tokens[begin : begin + most].permute(1, 2, 0, 3)
            bias = self._bias(number, each, window, begin, part.shape[2])
            mixed = self._mix(part.flatten(1, 2), keys, values, scale, bias)
            results[begin : begin + most] = mixed.view(*part.shape[:3], -1).permute(2, 0, 1, 3)

    def _mix(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return softmax(query · keysᵀ · scale + bias) · values of each of a batch [n, …]."""
        start = self._nothing if bias is None else bias
        transposed = keys.transpose(1, 2)
        scores = torch.baddbmm(start, query, transposed, beta=0 if bias is None else 1, alpha=scale)
        if scores.dtype is not torch.float32:
            # Scores are rounded relative to their size. Less the row's largest, those that count are next to zero.
            scores = torch.baddbmm(start - scores.amax(-1, keepdim=True), query, transposed, alpha=scale)
        return torch.bmm(torch.softmax(scores, -1), values)

    def _bias(self, number: int, heads: int, window: int, begin: int = 0, count: int = 0) -> torch.Tensor | None:
        """Return what is added to the scores of a group, of `count` queries of a row alone: 0, -inf where not visible.

        For rows it is [rows · heads, 1, keys], for a row alone [1, heads · count, keys]. None: all are visible.
        """
        name = number, heads, window, begin
        if name not in self._biases:
            group = self._groups[number]
            keys = torch.arange(group.blocks.shape[1] * self.cache.block_size)
            newest = group.start + begin + torch.arange(count) if count else group.lengths - 1
            hidden = keys > newest[:, None]
            if window:
                hidden |= keys <= newest[:, None] - window
            bias = torch.zeros_like(hidden, dtype=self.cache.spec.dtype).masked_fill_(hidden, float("-inf"))
            if not bool(hidden.any()):
                self._biases[name] = None
            elif count:
                self._biases[name] = bias.repeat(heads, 1)[None]
            else:
                self._biases[name] = bias.repeat_interleave(heads, 0)[:, None]
        return self._biases[name]

    def _of_heads(self, places: torch.Tensor, heads: int) -> torch.Tensor:
        """Return which lines of a cache [blocks · heads · block_size, width] `places` are, those of each head."""
        size = self.cache.block_size
        each = torch.arange(heads)
        return (((places // size)[:, None] * heads + each) * size + (places % size)[:, None]).view(-1)

    def _behind(self, inputs: AttentionInputs) -> torch.Tensor:
        """Return the places behind each row's last token in its block that another row may have written.

        They are cleared before the row is stored: they aren't visible, but 0 · NaN is NaN. A row that goes on in its
        block where the last one of its slot ended has none.
        """
        size, lengths, ends = self.cache.block_size, inputs.host_lengths.astype(np.int64), inputs.host_begins[1:]
        starts = lengths - np.diff(inputs.host_begins)
        last = inputs.places.numpy()[ends - 1]
        goes_on = (starts == self._reach[inputs.host_slots]) & ((lengths - 1) // size == (starts - 1) // size)
        self._reach[inputs.host_slots] = lengths
        counts = np.where(goes_on | (last < 0), 0, size - 1 - last % size)
        behind = np.cumsum(counts)
        total = int(behind[-1])
        return torch.from_numpy(np.arange(1, total + 1) + np.repeat(last - behind + counts, counts))

    def _clear(self, by_block: torch.Tensor, group: Group) -> None:
        """Do nothing: the places behind a row's length in its last block are clear already."""
