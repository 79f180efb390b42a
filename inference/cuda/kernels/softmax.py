"""Loads of queries and the softmax over a row's keys, for both attention kernels."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_queries(  # noqa: ANN201 - a tile
    query, token, head, valid, query_stride, KEY_DIM: tl.constexpr, PADDED_KEY_DIM: tl.constexpr
):
    """The queries of `token` and `head` (both one for each lane), 0 where a lane isn't valid."""
    column = tl.arange(0, PADDED_KEY_DIM)
    return tl.load(
        query + token[:, None] * query_stride + head[:, None] * KEY_DIM + column[None, :],
        mask=valid[:, None] & (column[None, :] < KEY_DIM),
        other=0.0,
    )


@triton.jit
def attend_keys(  # noqa: ANN201 - a tuple of tiles
    q,
    acc,
    peak,
    total,
    position,
    low,
    limit,
    table,
    keys,
    values,
    head,
    scale,
    softcap,
    kv_heads,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PADDED_KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
):
    """Take the keys `low` … `limit` - 1, by tiles of BLOCK_N, into the softmax so far (`acc`, `peak`, `total`; base 2).

    A query sees the keys before `limit` up to its own `position`. With no key seen, `peak` stays -inf and `total` 0.
    """
    for start in range(low, limit, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        inside = key < limit
        block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        row = (block * kv_heads + head) * BLOCK_SIZE + key % BLOCK_SIZE

        column = tl.arange(0, PADDED_KEY_DIM)
        k = tl.load(
            keys + row[None, :] * KEY_DIM + column[:, None],
            mask=inside[None, :] & (column[:, None] < KEY_DIM),
            other=0.0,
        )
        score = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
        if HAS_SOFTCAP:  # cap · tanh(score / cap), in the base's units
            score = softcap * (1.0 - 2.0 / (tl.exp2(score * (2.0 * LOG2E / softcap)) + 1.0))
        score *= LOG2E
        visible = inside[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            visible &= key[None, :] > position[:, None] - WINDOW
        score = tl.where(visible, score, float("-inf"))

        new_peak = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weight, 1)

        column = tl.arange(0, PADDED_VALUE_DIM)
        v = tl.load(
            values + row[:, None] * VALUE_DIM + column[None, :],
            mask=inside[:, None] & (column[None, :] < VALUE_DIM),
            other=0.0,
        ).to(q.dtype)
        acc = acc * shrink[:, None] + tl.dot(weight.to(q.dtype), v, input_precision="ieee")
        peak = new_peak
    return acc, peak, total
