"""Attention over paged K/V in plain torch, on any device: the tier without kernels, and what kernels are tested with.

Decode rows of similar length share one gather and one batched product; each longer row has its own. A gather takes
whole blocks into buffers that are kept, since fresh ones cost more in page faults than the copy. What an ended sequence
left behind in a block never reaches another's result: a gather is cut or cleared at each sequence's own length, and
padded with the null block, which is always zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from inference.execution.attention.base import Attention, AttentionInputs
from inference.execution.kv_cache import KVCache, LayerShape

# Decode rows share one padded gather while the longest has at most this many keys, or twice as many as the shortest,
SMALL_GATHER = 128
# and while it has at most this many numbers: more wouldn't stay in the processor's cache until they are used.
GATHER_NUMBERS = 1 << 21


@dataclass(slots=True)
class Group:
    """Rows that share a gather: several of one token each, or one alone, with the `tokens` of the step.

    `lengths` [rows] count their keys, of which the longest has `longest`; `blocks` int64 [rows, most] are their block
    tables. `start` is the position of the first token of a row alone.
    """

    tokens: slice | torch.Tensor
    lengths: torch.Tensor
    blocks: torch.Tensor
    longest: int
    start: int
    indices: dict[int, torch.Tensor] = field(default_factory=dict)
    masks: dict[int, torch.Tensor | None] = field(default_factory=dict)

    @property
    def padded(self) -> bool:
        """Whether there are several rows, whose lengths may differ."""
        return len(self.lengths) > 1

    def index(self, heads: int) -> torch.Tensor:
        """Return which lines of a cache [blocks · heads, …] hold the group's K/V, by row, head and block."""
        if heads not in self.indices:
            each = torch.arange(heads, device=self.blocks.device)[None, :, None]
            self.indices[heads] = (self.blocks[:, None, :] * heads + each).view(-1)
        return self.indices[heads]

    def mask(self, window: int) -> torch.Tensor | None:
        """Return [rows, 1, 1, keys], or [tokens, keys] of a row alone: True where a key is visible; None: all are."""
        if window not in self.masks:
            keys = torch.arange(self.longest, device=self.blocks.device)
            queries = self.lengths[:, None] - 1 if self.padded else keys[self.start :, None]
            visible = keys <= queries
            if window:
                visible &= keys > queries - window
            self.masks[window] = None if bool(visible.all()) else visible
        mask = self.masks[window]
        return mask[:, None, None, :] if mask is not None and self.padded else mask


class ReferenceAttention(Attention):
    name = "torch reference"
    exact = False  # the products' order of summation depends on the padding

    def __init__(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> None:
        super().__init__(cache, max_rows=max_rows, max_blocks=max_blocks)
        self._kept: dict[str, torch.Tensor] = {}
        self._groups: list[Group] = []
        self._stored: torch.Tensor | None = None  # the tokens that have a place, where some have none
        self._offsets = self._blocks = torch.empty(0)

    def prepare(self, inputs: AttentionInputs) -> None:
        super().prepare(inputs)
        size = self.cache.block_size
        missing = inputs.places < 0
        self._stored = (~missing).nonzero()[:, 0] if bool(missing.any()) else None
        places = inputs.places if self._stored is None else inputs.places[self._stored]
        self._blocks, self._offsets = places // size, places % size
        self._groups = [self._group(inputs, rows) for rows in self._grouped(inputs)]

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if self._stored is not None:
            key, value = key[self._stored], value[self._stored]
        cached = self.cache.layers[layer]
        cached.keys[self._blocks, :, self._offsets] = key
        cached.values[self._blocks, :, self._offsets] = value

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
        shape = self.cache.layers[layer].shape
        heads = query.shape[1]
        grouped = heads // shape.kv_heads
        out = query.new_empty(query.shape[0], heads, shape.value_dim)
        for group in self._groups:
            keys, values = (part[:, :, : group.longest] for part in self._gather(layer, group))
            q, mask, causal = query[group.tokens], group.mask(window), False
            decodes = len(q) == len(group.lengths)
            if decodes:  # the heads that share a K/V head take the place of query positions: K/V need no repetition
                q = q.view(len(q), shape.kv_heads, grouped, shape.key_dim)
            else:
                q = q.transpose(0, 1)[None]
                causal = not group.start and (not window or window >= group.longest)
            if softcap or sinks is not None:
                sink = None if sinks is None else sinks.view(q.shape[1], -1, 1)
                mixed = _eager_attention(q, keys, values, mask, scale=scale, softcap=softcap, sinks=sink)
            else:
                mixed = scaled_dot_product_attention(
                    q, keys, values, attn_mask=None if causal else mask, is_causal=causal, scale=scale, enable_gqa=True
                )
            if not decodes:
                mixed = mixed[0].transpose(0, 1)
            out[group.tokens] = mixed.reshape(-1, heads, shape.value_dim)
        return out

    def _gather(self, layer: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys [rows, kv_heads, keys, key_dim] and values of the group's blocks, zero past each length."""
        cached = self.cache.layers[layer]
        index = group.index(cached.shape.kv_heads)
        gathered = []
        for name, source in (("keys", cached.keys), ("values", cached.values)):
            lines = source.view(-1, source.shape[2] * source.shape[3])
            kept = self._buffer(name, len(index) * lines.shape[1]).view(len(index), -1)
            torch.index_select(lines, 0, index, out=kept)
            by_block = kept.view(*group.blocks.shape[:1], source.shape[1], group.blocks.shape[1], *source.shape[2:])
            if group.padded:
                self._clear(by_block, group)
            gathered.append(by_block.flatten(2, 3))
        return gathered[0], gathered[1]

    def _clear(self, by_block: torch.Tensor, group: Group) -> None:
        """Clear what follows a row's length in its last block: it isn't visible, but 0 · NaN is NaN."""
        rows = torch.arange(len(group.lengths), device=by_block.device)
        last = (group.lengths - 1) // self.cache.block_size
        offsets = torch.arange(self.cache.block_size, device=by_block.device)
        past = offsets >= (group.lengths - last * self.cache.block_size)[:, None]
        by_block[rows, :, last] = by_block[rows, :, last].masked_fill(past[:, None, :, None], 0)

    def _buffer(self, name: str, numbers: int) -> torch.Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.numel() < numbers:
            kept = self._kept[name] = torch.empty(numbers, dtype=self.cache.spec.dtype, device=self.cache.device)
        return kept[:numbers]

    def _grouped(self, inputs: AttentionInputs) -> list[list[int]]:
        """Return which rows share a gather: decode rows by length, and each longer row alone."""
        counts = np.diff(inputs.host_begins)
        lengths: list[int] = inputs.host_lengths.tolist()
        widest = max(_width(shape) for shape in self.cache.spec.layers)
        groups: list[list[int]] = []
        for row in sorted(np.flatnonzero(counts == 1).tolist(), key=lengths.__getitem__):
            group = groups[-1] if groups else []
            numbers = (len(group) + 1) * lengths[row] * widest
            if not group or numbers > GATHER_NUMBERS or lengths[row] > max(SMALL_GATHER, 2 * lengths[group[0]]):
                groups.append([row])
            else:
                group.append(row)
        return groups + [[row] for row in np.flatnonzero(counts > 1).tolist()]

    def _group(self, inputs: AttentionInputs, rows: list[int]) -> Group:
        first, last = rows[0], rows[-1]
        longest = int(inputs.host_lengths[last])
        begin, end = int(inputs.host_begins[first]), int(inputs.host_begins[first + 1])
        device = self.cache.device
        chosen = torch.tensor(rows, device=device)
        lengths = inputs.lengths[chosen]
        most = -(-longest // self.cache.block_size)
        blocks = inputs.tables[inputs.slots[chosen].long(), :most].long()
        # Blocks that a sequence holds for tokens to come are left out: others' K/V are in them still.
        blocks *= torch.arange(most, device=device) * self.cache.block_size < lengths[:, None]
        return Group(
            tokens=inputs.begins[chosen].long() if len(rows) > 1 else slice(begin, end),
            lengths=lengths,
            blocks=blocks,
            longest=longest,
            start=longest - (end - begin),
        )


def _width(shape: LayerShape) -> int:
    return shape.kv_heads * max(shape.key_dim, shape.value_dim)


def _eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    softcap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention in float32 with softcap and sinks, which the fused operator lacks. Shapes are as for that operator.

    `sinks` is [heads, queries or 1, 1], as `query` has them.
    """
    joint = query.float().reshape(*key.shape[:2], -1, query.shape[-1])
    scores = torch.matmul(joint, key.float().transpose(-1, -2)).view(*query.shape[:-1], -1) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    mixed = torch.matmul(weights.reshape(*joint.shape[:-1], -1), value.float())
    return mixed.view(*query.shape[:-1], -1).to(query.dtype)
