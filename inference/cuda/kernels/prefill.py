"""Attention of rows with many queries: prompts and their chunks, any mix of lengths in one launch.

A program computes the queries of one tile for all query heads that share a K/V head (GQA packing). A query's result
depends on its own row alone: the keys are taken from position 0 in tiles of fixed size, whatever else the step holds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.cuda.kernels.softmax import LOG2E, attend_keys, load_queries


@triton.jit
def _row_of(begins, tile, rows, BLOCK_Q: tl.constexpr):
    """The row of a query tile: row i's tiles begin at begins[i] // BLOCK_Q + i."""
    low = 0
    high = rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(begins + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(do_not_specialize=["rows", "min_queries"])
def _prefill(
    query,
    keys,
    values,
    out,
    begins,
    lengths,
    slots,
    tables,
    sinks,
    scale,
    softcap,
    value_scale,
    rows,
    min_queries,
    kv_heads,
    query_stride,
    table_width,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PADDED_KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = _row_of(begins, tile, rows, BLOCK_Q)
    begin = tl.load(begins + row)
    count = tl.load(begins + row + 1) - begin
    first = (tile - (begin // BLOCK_Q + row)) * BLOCK_Q  # the tile's first query within its row
    if (first >= count) | (count < min_queries):
        return
    length = tl.load(lengths + row)
    table = tables + tl.load(slots + row).to(tl.int64) * table_width

    lane = tl.arange(0, BLOCK_M)
    number = first + lane // GROUP
    valid = (lane < BLOCK_Q * GROUP) & (number < count)
    token = (begin + number).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    position = length - count + number
    q = load_queries(query, token, head, valid, query_stride, KEY_DIM, PADDED_KEY_DIM)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        peak = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2E
        total += 1.0
    acc = tl.zeros([BLOCK_M, PADDED_VALUE_DIM], tl.float32)
    limit = length - count + tl.minimum(first + BLOCK_Q, count)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(length - count + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    acc, peak, total = attend_keys(
        q, acc, peak, total, position, low, limit, table, keys, values, kv_head, scale, softcap, kv_heads,
        WINDOW, HAS_SOFTCAP, BLOCK_SIZE, BLOCK_N, KEY_DIM, PADDED_KEY_DIM, VALUE_DIM, PADDED_VALUE_DIM,
    )  # fmt: skip
    acc = acc * value_scale / tl.where(total > 0.0, total, 1.0)[:, None]
    column = tl.arange(0, PADDED_VALUE_DIM)
    tl.store(
        out + (token[:, None] * (kv_heads * GROUP) + head[:, None]) * VALUE_DIM + column[None, :],
        acc.to(out.dtype.element_ty),
        mask=valid[:, None] & (column[None, :] < VALUE_DIM),
    )


def prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    begins: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    tables: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    min_queries: int = 1,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write causal attention of `query` [T, heads, key_dim] over the K/V of its rows to `out` [T, heads, value_dim].

    Rows of fewer than `min_queries` queries are left out (`decode` takes them).

    `begins` int32 [R + 1] are the rows' first packed queries, `lengths` int32 [R] their keys with the step's own,
    `slots` int32 [R] their rows of `tables` int32 [slots, width], which hold the blocks by position. `keys` and
    `values` are [blocks, kv_heads, block_size, dim], contiguous, float8 ones divided by their scales. A query sees the
    keys up to its own position, with `window` only those at positions > its own − window; `softcap` > 0 replaces a
    score by cap · tanh(score / cap); `sinks` [heads] joins each head's softmax as a score whose value is zero.
    """
    tokens, heads, key_dim = query.shape
    kv_heads, block_size, value_dim = values.shape[1:]
    rows = lengths.shape[0]
    group = heads // kv_heads
    wide = max(key_dim, value_dim) > 128
    block_m = max(
        triton.next_power_of_2(group), 64 if wide or query.itemsize > 2 else 128
    )  # whatever the step holds: see above
    block_q = block_m // group
    _prefill[(tokens // block_q + rows, kv_heads)](
        query,
        keys,
        values,
        out,
        begins,
        lengths,
        slots,
        tables,
        query if sinks is None else sinks,
        scale * key_scale,
        softcap,
        value_scale,
        rows,
        min_queries,
        kv_heads,
        query.stride(0),
        tables.stride(0),
        GROUP=group,
        WINDOW=window,
        HAS_SOFTCAP=softcap > 0,
        HAS_SINKS=sinks is not None,
        BLOCK_SIZE=block_size,
        BLOCK_M=block_m,
        BLOCK_Q=block_q,
        BLOCK_N=32 if query.dtype == torch.float32 or wide else 64,
        KEY_DIM=key_dim,
        PADDED_KEY_DIM=max(16, triton.next_power_of_2(key_dim)),
        VALUE_DIM=value_dim,
        PADDED_VALUE_DIM=max(16, triton.next_power_of_2(value_dim)),
        num_warps=8 if block_m >= 128 else 4,
        num_stages=2,
    )
