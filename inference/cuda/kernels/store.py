"""Writing keys and values into their blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def narrowed(value, scale, dtype: tl.constexpr):  # noqa: ANN201 - a tile
    """`value` / `scale` in `dtype`; what is too large for float8 becomes its largest number."""
    value = value.to(tl.float32) / scale
    if dtype == tl.float8e4nv:
        value = tl.minimum(tl.maximum(value, -448.0), 448.0)
    return value.to(dtype)


@triton.jit
def _store(
    source,
    target,
    places,
    scale,
    token_stride,
    head_stride,
    heads,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    if place < BLOCK_SIZE:  # nowhere, or the null block
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, PADDED_WIDTH)
    mask = (head[:, None] < heads) & (column[None, :] < WIDTH)
    value = tl.load(source + token * token_stride + head[:, None] * head_stride + column[None, :], mask=mask, other=0.0)
    row = ((place // BLOCK_SIZE) * heads + head) * BLOCK_SIZE + place % BLOCK_SIZE
    tl.store(
        target + row[:, None] * WIDTH + column[None, :], narrowed(value, scale, target.dtype.element_ty), mask=mask
    )


def store(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    places: torch.Tensor,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write `key` and `value` [T, kv_heads, width] to `places` int64 [T] of `keys` and `values`.

    These are [blocks, kv_heads, block_size, width], contiguous; place = block · block_size + offset. Block 0 is never
    written: what has its place there, or a negative one, is left out. They may be float8: what is stored is the key or
    value divided by its scale.
    """
    for source, target, scale in ((key, keys, key_scale), (value, values, value_scale)):
        tokens, heads, width = source.shape
        if not tokens:
            continue
        rows = min(16, triton.next_power_of_2(heads))
        _store[(tokens, triton.cdiv(heads, rows))](
            source,
            target,
            places,
            scale,
            source.stride(0),
            source.stride(1),
            heads,
            BLOCK_SIZE=target.shape[2],
            WIDTH=width,
            PADDED_WIDTH=triton.next_power_of_2(width),
            HEADS=rows,
        )
