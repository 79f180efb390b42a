"""Attention over paged K/V in plain torch, on the CPU.

Decode rows of similar length share one gather and one batched product; each prefill chunk has its own. A gather takes
only a sequence's own places, padded with place 0 of the null block (always zeros), so that K/V left by an ended
sequence never reach another's result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference.execution.kv_cache import LayerCache


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each at packed indices `begin` … `end` - 1.

    `index` [rows, longest] holds each row's places by position, 0 beyond its length; `lengths` [rows] include the
    new token.
    """

    begin: int
    end: int
    index: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence at packed indices `begin` … `end` - 1 and positions `start`, `start` + 1, ….

    `index` [start + tokens] holds the sequence's places by position.
    """

    begin: int
    end: int
    start: int
    index: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """The place of each packed token's K/V (`places` [T]), and the keys that each row attends to.

    `masks` caches the masks, which layers with the same window share.
    """

    places: torch.Tensor
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    masks: dict[tuple[str, int, int], torch.Tensor | None] = field(default_factory=dict)

    def group_mask(self, number: int, window: int) -> torch.Tensor | None:
        """Return [rows, 1, 1, longest], True where a key is visible; None when all are."""
        key = ("group", number, window)
        if key not in self.masks:
            group = self.groups[number]
            longest = group.index.shape[1]
            position = torch.arange(longest)
            visible = position < group.lengths[:, None]
            if window:
                visible &= position >= group.lengths[:, None] - window
            self.masks[key] = None if bool(visible.all()) else visible[:, None, None, :]
        return self.masks[key]

    def chunk_mask(self, number: int, window: int) -> torch.Tensor | None:
        """Return [tokens, keys], True where a key is visible; None when plain causal attention does the same."""
        key = ("chunk", number, window)
        if key not in self.masks:
            chunk = self.chunks[number]
            keys = torch.arange(chunk.index.shape[0])
            queries = keys[chunk.start :, None]
            visible = keys <= queries
            if window:
                visible &= keys > queries - window
            square = chunk.start == 0 and (not window or window >= chunk.index.shape[0])
            self.masks[key] = None if square else visible
        return self.masks[key]


def attend(
    query: torch.Tensor,
    cache: LayerCache,
    meta: AttentionMeta,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention of `query` [T, heads, key_dim] over the cached K/V as [T, heads, value_dim].

    The step's own K/V must be stored already. `window` > 0 shows a query only the keys at positions > its own − window;
    `softcap` > 0 replaces a score by cap·tanh(score / cap); `sinks` [heads] joins each head's softmax as one more score
    whose value is zero.
    """
    shape = cache.shape
    heads = query.shape[1]
    grouped = heads // shape.kv_heads
    out = query.new_empty(query.shape[0], heads, shape.value_dim)
    plain = not softcap and sinks is None
    for number, group in enumerate(meta.groups):
        rows, longest = group.index.shape
        keys, values = cache.load(group.index.view(-1))
        key = keys.view(rows, longest, shape.kv_heads, shape.key_dim).transpose(1, 2)
        value = values.view(rows, longest, shape.kv_heads, shape.value_dim).transpose(1, 2)
        # The heads that share a K/V head take the place of the query positions, so that K/V need no repetition.
        q = query[group.begin : group.end].view(rows, shape.kv_heads, grouped, shape.key_dim)
        mask = meta.group_mask(number, window)
        if plain:
            mixed = scaled_dot_product_attention(q, key, value, attn_mask=mask, scale=scale)
        else:
            sink = None if sinks is None else sinks.view(shape.kv_heads, grouped, 1)
            mixed = _eager_attention(q, key, value, mask, scale=scale, softcap=softcap, sink=sink)
        out[group.begin : group.end] = mixed.reshape(rows, heads, shape.value_dim)
    for number, chunk in enumerate(meta.chunks):
        length = chunk.index.shape[0]
        tokens = chunk.end - chunk.begin
        keys, values = cache.load(chunk.index)
        key, value = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        q = query[chunk.begin : chunk.end].transpose(0, 1)
        mask = meta.chunk_mask(number, window)
        if plain:
            mixed = scaled_dot_product_attention(
                q[None], key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped > 1
            )[0]
        else:
            if mask is None:
                mask = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
            q = q.reshape(1, shape.kv_heads, grouped * tokens, shape.key_dim)
            sink = None if sinks is None else sinks.repeat_interleave(tokens).view(shape.kv_heads, -1, 1)
            mixed = _eager_attention(q, key, value, mask.repeat(grouped, 1), scale=scale, softcap=softcap, sink=sink)
            mixed = mixed.view(heads, tokens, shape.value_dim)
        out[chunk.begin : chunk.end] = mixed.transpose(0, 1)
    return out


def _eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    softcap: float,
    sink: torch.Tensor | None,
) -> torch.Tensor:
    """Attention in float32 with softcap and sinks, which the fused operator lacks. Shapes are as for that operator."""
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sink is not None:
        column = sink.float().expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.matmul(weights, value.float()).to(query.dtype)
