"""Attention over paged K/V, and what writes it.

`keys` is [blocks, kv_heads, block_size, key_dim] and `values` [blocks, kv_heads, block_size, value_dim], but within a
block the kernels lay them out in their own way (attention.c): only they may read or write them. In int8 `scales` are
those of keys and of values, float32 [blocks, kv_heads, block_size] each; else there are none.
"""

from __future__ import annotations

import torch

from inference.kernels.library import Library, element, require

LANES = 16
WIDEST = 1024

Scales = tuple[torch.Tensor, torch.Tensor]


def unsupported(key_dim: int, value_dim: int, block_size: int, dtype: torch.dtype) -> str:
    """Return why these kernels can't serve such K/V, or an empty text when they can."""
    if dtype not in {torch.bfloat16, torch.float32, torch.int8}:
        return f"the C kernels have no {str(dtype).removeprefix('torch.')}"
    if block_size % LANES:
        return f"a block of {block_size} is no multiple of {LANES}"
    if key_dim % LANES or value_dim % LANES or max(key_dim, value_dim) > WIDEST:
        return f"heads of {key_dim} and {value_dim} are no multiples of {LANES} up to {WIDEST}"
    return ""


def store(
    library: Library,
    key: torch.Tensor,
    value: torch.Tensor,
    places: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: Scales | None = None,
) -> None:
    """Write the K/V of T tokens: `key` [T, kv_heads, key_dim] and `value` [T, kv_heads, value_dim] to `places`.

    `places` int64 [T]: block · block_size + offset, or -1 for a token that isn't stored.
    """
    kv_heads, block_size, key_dim = keys.shape[1:]
    tokens, value_dim, dtype = places.shape[0], values.shape[3], key.dtype
    library.store(
        element(key),
        require(key, (tokens, kv_heads, key_dim), dtype, "key"),
        require(value, (tokens, kv_heads, value_dim), dtype, "value"),
        require(places, (tokens,), torch.int64, "places"),
        *_stored(keys, values, scales, dtype),
        tokens,
        kv_heads,
        key_dim,
        value_dim,
        block_size,
    )


def rope_store(
    library: Library,
    joint: torch.Tensor,
    rotations: torch.Tensor,
    places: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: Scales | None = None,
    *,
    heads: int,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Return the rotated queries [T, heads, key_dim] of `joint`; store its rotated keys and its values as `store` does.

    `joint` [T, heads · key_dim + kv_heads · (key_dim + value_dim)] is the output of the q, k, v projection, queries and
    keys in adjacent (real, imaginary) pairs; `rotations` complex64 [T, key_dim / 2]. With `query_norm` and `key_norm`
    float32 [key_dim] each head is normed before (RMS, `eps`).
    """
    kv_heads, block_size, key_dim = keys.shape[1:]
    tokens, value_dim, dtype = places.shape[0], values.shape[3], joint.dtype
    width = heads * key_dim + kv_heads * (key_dim + value_dim)
    query = joint.new_empty(tokens, heads, key_dim)
    library.rope_store(
        element(joint),
        require(joint, (tokens, width), dtype, "joint"),
        None if query_norm is None else require(query_norm, (key_dim,), torch.float32, "query_norm"),
        None if key_norm is None else require(key_norm, (key_dim,), torch.float32, "key_norm"),
        require(rotations, (tokens, key_dim // 2), torch.complex64, "rotations"),
        require(places, (tokens,), torch.int64, "places"),
        query.data_ptr(),
        *_stored(keys, values, scales, dtype),
        tokens,
        heads,
        kv_heads,
        key_dim,
        value_dim,
        block_size,
        eps,
    )
    return query


def attend(
    library: Library,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    begins: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    tables: torch.Tensor,
    scales: Scales | None = None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention [T, heads, value_dim] of `query` [T, heads, key_dim], packed by rows, over the stored K/V.

    `begins` int32 [rows + 1] counts the queries before each row, `lengths` int32 [rows] the row's keys with the
    step's own (at least its queries); `slots` int32 [rows] is the row's line of `tables` int32 [lines, width], its
    blocks. What lies in a block behind the row's length has no effect. `window` > 0 shows a query only keys at
    positions > its own − window; `softcap` > 0 replaces a score by cap · tanh(score / cap); `sinks` float32 [heads]
    join each head's softmax as one more score without a value.
    """
    kv_heads, block_size, key_dim = keys.shape[1:]
    tokens, heads = query.shape[0], query.shape[1]
    rows, value_dim, dtype = lengths.shape[0], values.shape[3], query.dtype
    if heads % kv_heads:
        raise ValueError(f"{heads} heads can't share {kv_heads} K/V heads")
    if reason := unsupported(key_dim, value_dim, block_size, keys.dtype):
        raise ValueError(reason)
    out = query.new_empty(tokens, heads, value_dim)
    if library.attend(
        element(query),
        require(query, (tokens, heads, key_dim), dtype, "query"),
        *_stored(keys, values, scales, dtype),
        out.data_ptr(),
        require(begins, (rows + 1,), torch.int32, "begins"),
        require(lengths, (rows,), torch.int32, "lengths"),
        require(slots, (rows,), torch.int32, "slots"),
        require(tables, (tables.shape[0], tables.shape[1]), torch.int32, "tables"),
        None if sinks is None else require(sinks, (heads,), torch.float32, "sinks"),
        rows,
        tables.shape[1],
        heads,
        kv_heads,
        key_dim,
        value_dim,
        block_size,
        window,
        scale,
        softcap,
    ):
        raise MemoryError("not enough memory for attention")
    return out


def _stored(
    keys: torch.Tensor, values: torch.Tensor, scales: Scales | None, dtype: torch.dtype
) -> tuple[int, int, int | None, int | None]:
    """Return the addresses of K/V, which are in `dtype` or have scales, and of these."""
    blocks, kv_heads, block_size, key_dim = keys.shape
    stored = dtype if scales is None else torch.int8
    addresses = (
        require(keys, (blocks, kv_heads, block_size, key_dim), stored, "keys"),
        require(values, (blocks, kv_heads, block_size, values.shape[3]), stored, "values"),
    )
    if scales is None:
        return *addresses, None, None
    shape = (blocks, kv_heads, block_size)
    return (
        *addresses,
        require(scales[0], shape, torch.float32, "scales of keys"),
        require(scales[1], shape, torch.float32, "scales of values"),
    )
