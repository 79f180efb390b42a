"""Weights of four bits in groups along K: quantised, multiplied with few rows, and unpacked for many.

A byte j of a group holds the group's number j in its low half and number j + group / 2 in its high half, so that both
halves of a tile of bytes are runs of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """weight[n, k] ≈ (number[n, k] − zeros[n, g]) · scales[n, g] with g = k // group.

    `packed` uint8 [N, K / 2]; `scales` float32 and `zeros` uint8 [N, K / group].
    """

    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group: int


def quantise_int4(weight: torch.Tensor, group: int = 128) -> Int4Weight:
    """Return `weight` [N, K] rounded to four bits; K must be a multiple of `group`, and that a power of two ≥ 32."""
    rows, width = weight.shape
    if width % group:
        raise ValueError(f"a width of {width} has no whole number of groups of {group}")
    grouped = weight.float().view(rows, -1, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).clamp(min=1e-12)
    zeros = (-low / scales).round()
    numbers = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, 15).to(torch.uint8)
    packed = numbers[..., : group // 2] | numbers[..., group // 2 :] << 4
    return Int4Weight(packed.view(rows, width // 2).contiguous(), scales, zeros.to(torch.uint8), group)


@triton.jit(do_not_specialize=["M"])
def _int4_matvec(
    x,
    packed,
    scales,
    zeros,
    bias,
    residual,
    out,
    M,
    N,
    K,
    x_stride,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    HALF: tl.constexpr = GROUP // 2
    dtype: tl.constexpr = x.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    j = tl.arange(0, HALF)
    row = (n % N).to(tl.int64)
    groups = K // GROUP
    at_packed = packed + row[:, None] * (K // 2) + j[None, :]
    at_x = x + m[None, :] * x_stride + j[:, None]
    real = (m < M)[None, :]  # rows that pad the tile read nothing
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for group in range(groups):
        byte = tl.load(at_packed + group * HALF, eviction_policy="evict_first").to(tl.int32)
        zero = tl.load(zeros + row * groups + group).to(tl.int32)[:, None]
        first = tl.load(at_x + group * GROUP, mask=real, other=0.0)
        second = tl.load(at_x + group * GROUP + HALF, mask=real, other=0.0)
        part = tl.dot(((byte & 15) - zero).to(dtype), first, input_precision="ieee")
        part = tl.dot(((byte >> 4) - zero).to(dtype), second, part, input_precision="ieee")
        acc += part * tl.load(scales + row * groups + group)[:, None]
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = m[None, :] * N + n[:, None]
    inside = (n < N)[:, None] & real
    if HAS_RESIDUAL:
        acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _unpack(packed, scales, zeros, out, K, GROUP: tl.constexpr):
    HALF: tl.constexpr = GROUP // 2
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    j = tl.arange(0, HALF)
    byte = tl.load(packed + row * (K // 2) + group * HALF + j).to(tl.int32)
    at = row * (K // GROUP) + group
    zero = tl.load(zeros + at).to(tl.int32)
    scale = tl.load(scales + at)
    base = out + row * K + group * GROUP + j
    tl.store(base, (((byte & 15) - zero) * scale).to(out.dtype.element_ty))
    tl.store(base + HALF, (((byte >> 4) - zero) * scale).to(out.dtype.element_ty))


def int4_matvec(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x · weightᵀ + bias + residual [M, N] in the dtype of `x` [M, K], for at most MAX_ROWS rows."""
    (m, k), n = x.shape, weight.packed.shape[0]
    out = torch.empty(m, n, dtype=x.dtype, device=x.device)
    if m:
        block_n = 16 if n <= 16384 and m <= 8 else 32
        _int4_matvec[(triton.cdiv(n, block_n),)](
            x,
            weight.packed,
            weight.scales,
            weight.zeros,
            out if bias is None else bias,
            out if residual is None else residual,
            out,
            m,
            n,
            k,
            x.stride(0),
            HAS_BIAS=bias is not None,
            HAS_RESIDUAL=residual is not None,
            GROUP=weight.group,
            BLOCK_M=16 if m <= 16 else 32 if m <= 32 else 64,
            BLOCK_N=block_n,
            num_warps=4,
            num_stages=4,
        )
    return out


def unpack_int4(weight: Int4Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [N, K] in `dtype`, for products of many rows."""
    n, k = weight.packed.shape[0], weight.packed.shape[1] * 2
    out = torch.empty(n, k, dtype=dtype, device=weight.packed.device)
    _unpack[(n, k // weight.group)](weight.packed, weight.scales, weight.zeros, out, k, GROUP=weight.group, num_warps=1)
    return out
