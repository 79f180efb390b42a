"""Attention of rows with few queries over long contexts: the keys are split, the parts merged (FlashDecoding).

How many keys a split has depends on the row's own length alone, so that a row's result depends neither on its batch nor
on how long others may become: only how many programs share its splits does. Each split's part is written by itself, and
the merge adds them in their order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.cuda.kernels.softmax import LOG2E, attend_keys, load_queries

MAX_SPLITS = 16
LEAST_KEYS = tl.constexpr(256)  # of a split


@triton.jit
def _split_keys(length, SPLITS: tl.constexpr):
    """How many keys a split of a row of `length` has: LEAST_KEYS, doubled until SPLITS of them hold the row."""
    count = length * 0 + LEAST_KEYS
    for _ in tl.static_range(16):
        count = tl.where(count * SPLITS < length, count * 2, count)
    return count


@triton.jit
def _decode(
    query,
    keys,
    values,
    parts,
    logs,
    begins,
    lengths,
    slots,
    tables,
    scale,
    softcap,
    kv_heads,
    query_stride,
    table_width,
    MAX_QUERIES: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PADDED_KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    begin = tl.load(begins + row)
    count = tl.load(begins + row + 1) - begin
    if count > MAX_QUERIES:
        return
    length = tl.load(lengths + row)
    table = tables + tl.load(slots + row).to(tl.int64) * table_width

    lane = tl.arange(0, BLOCK_M)
    number = lane // GROUP
    valid = number < count
    token = (begin + number).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    position = length - count + number
    q = load_queries(query, token, head, valid, query_stride, KEY_DIM, PADDED_KEY_DIM)
    size = _split_keys(length, SPLITS)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - count - WINDOW + 1, 0) // size
    column = tl.arange(0, PADDED_VALUE_DIM)
    for split in range(first + tl.program_id(2), tl.cdiv(length, size), tl.num_programs(2)):
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, PADDED_VALUE_DIM], tl.float32)
        low = split * size
        if WINDOW > 0:
            low = tl.maximum(low, tl.maximum(length - count - WINDOW + 1, 0) // BLOCK_N * BLOCK_N)
        limit = tl.minimum(split * size + size, length)
        acc, peak, total = attend_keys(
            q, acc, peak, total, position, low, limit, table, keys, values, kv_head, scale, softcap, kv_heads,
            WINDOW, HAS_SOFTCAP, BLOCK_SIZE, BLOCK_N, KEY_DIM, PADDED_KEY_DIM, VALUE_DIM, PADDED_VALUE_DIM,
        )  # fmt: skip
        seen = total > 0.0
        safe = tl.where(seen, total, 1.0)
        part = ((row.to(tl.int64) * MAX_QUERIES + number) * (kv_heads * GROUP) + head) * SPLITS + split
        tl.store(logs + part, tl.where(seen, peak + tl.log2(safe), float("-inf")), mask=valid)
        tl.store(
            parts + part[:, None] * VALUE_DIM + column[None, :],
            acc / safe[:, None],
            mask=valid[:, None] & (column[None, :] < VALUE_DIM),
        )


@triton.jit
def _merge(
    parts,
    logs,
    out,
    begins,
    lengths,
    sinks,
    value_scale,
    heads,
    MAX_QUERIES: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0) // MAX_QUERIES
    number = tl.program_id(0) % MAX_QUERIES
    head = tl.program_id(1)
    begin = tl.load(begins + row)
    count = tl.load(begins + row + 1) - begin
    if (number >= count) | (count > MAX_QUERIES):
        return
    length = tl.load(lengths + row)
    size = _split_keys(length, SPLITS)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - count - WINDOW + 1, 0) // size
    split = tl.arange(0, SPLITS)
    used = (split >= first) & (split < tl.cdiv(length, size))
    part = (tl.program_id(0).to(tl.int64) * heads + head) * SPLITS + split
    log = tl.load(logs + part, mask=used, other=float("-inf"))
    peak = tl.max(log, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        peak = tl.maximum(peak, sink)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weight = tl.exp2(log - base)
    total = tl.sum(weight, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - base)
    column = tl.arange(0, PADDED_VALUE_DIM)
    value = tl.load(
        parts + part[:, None] * VALUE_DIM + column[None, :],
        mask=used[:, None] & (column[None, :] < VALUE_DIM),
        other=0.0,
    )
    mixed = tl.sum(value * weight[:, None], 0) * value_scale / tl.where(total > 0.0, total, 1.0)
    at = ((begin + number).to(tl.int64) * heads + head) * VALUE_DIM + column
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=column < VALUE_DIM)


def decode(
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
    processors: int,
    max_queries: int = 1,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Do what `prefill` does for the rows of at most `max_queries` queries, and nothing for the others.

    `processors` is the device's number of multiprocessors: it decides how many programs share the work, never a result.
    """
    heads, key_dim = query.shape[1:]
    kv_heads, block_size, value_dim = values.shape[1:]
    rows = lengths.shape[0]
    group = heads // kv_heads
    longest = tables.shape[1] * block_size
    splits = min(MAX_SPLITS, int(triton.next_power_of_2(triton.cdiv(longest, LEAST_KEYS.value))))
    parts = torch.empty(rows * max_queries, heads, splits, value_dim, dtype=torch.float32, device=query.device)
    logs = torch.empty(rows * max_queries, heads, splits, dtype=torch.float32, device=query.device)
    programs = min(splits, max(1, 2 * processors // (rows * kv_heads)))
    padded_value_dim = max(16, triton.next_power_of_2(value_dim))
    wide = max(key_dim, value_dim) > 128
    _decode[(rows, kv_heads, programs)](
        query,
        keys,
        values,
        parts,
        logs,
        begins,
        lengths,
        slots,
        tables,
        scale * key_scale,
        softcap,
        kv_heads,
        query.stride(0),
        tables.stride(0),
        MAX_QUERIES=max_queries,
        GROUP=group,
        WINDOW=window,
        HAS_SOFTCAP=softcap > 0,
        BLOCK_SIZE=block_size,
        BLOCK_M=max(16, triton.next_power_of_2(group * max_queries)),
        BLOCK_N=32 if query.dtype == torch.float32 or wide else 64,
        KEY_DIM=key_dim,
        PADDED_KEY_DIM=max(16, triton.next_power_of_2(key_dim)),
        VALUE_DIM=value_dim,
        PADDED_VALUE_DIM=padded_value_dim,
        SPLITS=splits,
        num_warps=4,
        num_stages=3,
    )
    _merge[(rows * max_queries, heads)](
        parts,
        logs,
        out,
        begins,
        lengths,
        logs if sinks is None else sinks,
        value_scale,
        heads,
        MAX_QUERIES=max_queries,
        WINDOW=window,
        HAS_SINKS=sinks is not None,
        VALUE_DIM=value_dim,
        PADDED_VALUE_DIM=padded_value_dim,
        SPLITS=splits,
        num_warps=4,
    )
