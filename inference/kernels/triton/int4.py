"""Weights of four bits in groups along K: quantised, multiplied with rows, and unpacked for very many of them.

A byte j of a group holds the group's number j in its low half and number j + group / 2 in its high half, so that both
halves of a tile of bytes are runs of numbers. A half becomes a float without a conversion: it is the lowest bits of a
power of two so large that they count ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MAX_ROWS = 1024  # above, unpacking the weight once and cuBLAS take less time
ZERO = 15  # the bits of a scale that hold its group's zero


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """weight[n, k] ≈ (number[n, k] − zero[g, n]) · scale[g, n] with g = k // group.

    `packed` uint8 [N, K / 2]; `scales` int32 [K / group, N]: a float32's bits, of which the lowest four are the zero.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    group: int


def quantise_int4(weight: torch.Tensor, group: int = 128) -> Int4Weight:
    """Return `weight` [N, K] rounded to four bits; K must be a multiple of `group`, and that a power of two ≥ 32."""
    rows, width = weight.shape
    if width % group:
        raise ValueError(f"a width of {width} has no whole number of groups of {group}")
    grouped = weight.float().view(rows, -1, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    words = ((high - low) / 15).clamp(min=1e-12).view(torch.int32) & ~ZERO
    scales = words.view(torch.float32)
    zeros = (-low / scales).round().clamp(max=15)
    numbers = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, 15).to(torch.uint8)
    packed = numbers[..., : group // 2] | numbers[..., group // 2 :] << 4
    return Int4Weight(packed.view(rows, width // 2).contiguous(), (words | zeros.int()).T.contiguous(), group)


@triton.jit
def _whole(number, dtype: tl.constexpr):
    """Return numbers of four bits as floats above a power of two, from which a difference of two of them is exact."""
    if dtype == tl.float32:
        whole = number.to(tl.int32) | 0x4B000000
    elif dtype == tl.float16:
        whole = number.to(tl.int16) | 0x6400
    else:
        whole = number.to(tl.int16) | 0x4300
    return whole.to(dtype, bitcast=True)


@triton.jit(do_not_specialize=["M"])
def _int4_matmul(
    x,
    packed,
    scales,
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
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    HALF: tl.constexpr = GROUP // 2
    dtype: tl.constexpr = x.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.arange(0, HALF)
    row = n % N
    at_packed = packed + row.to(tl.int64)[:, None] * (K // 2) + j[None, :]
    at_x = x + m[None, :] * x_stride + j[:, None]
    real = (m < M)[None, :]  # rows that pad the tile read nothing
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, K // GROUP, GROUPS):
        for ahead in tl.static_range(GROUPS):
            group = start + ahead
            byte = tl.load(at_packed + group * HALF, eviction_policy="evict_first")
            word = tl.load(scales + group * N + row)
            zero = _whole(word & 15, dtype)[:, None]
            first = tl.load(at_x + group * GROUP, mask=real, other=0.0)
            second = tl.load(at_x + group * GROUP + HALF, mask=real, other=0.0)
            part = tl.dot(_whole(byte & 15, dtype) - zero, first, input_precision="ieee")
            part = tl.dot(_whole(byte >> 4, dtype) - zero, second, part, input_precision="ieee")
            acc += part * (word & -16).to(tl.float32, bitcast=True)[:, None]
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = m[None, :] * N + n[:, None]
    inside = (n < N)[:, None] & real
    if HAS_RESIDUAL:
        acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _unpack(packed, scales, out, N, K, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    HALF: tl.constexpr = GROUP // 2
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = j < K // 2
    byte = tl.load(packed + row * (K // 2) + j, mask=real, other=0)
    word = tl.load(scales + (j // HALF) * N + row, mask=real, other=0)
    zero = word & 15
    scale = (word & -16).to(tl.float32, bitcast=True)
    at = out + row * K + (j // HALF) * GROUP + j % HALF
    tl.store(at, (((byte & 15).to(tl.int32) - zero) * scale).to(out.dtype.element_ty), mask=real)
    tl.store(at + HALF, (((byte >> 4).to(tl.int32) - zero) * scale).to(out.dtype.element_ty), mask=real)


def int4_matmul(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x · weightᵀ + bias + residual [M, N] in the dtype of `x` [M, K], for any number of rows."""
    (m, k), n = x.shape, weight.packed.shape[0]
    out = torch.empty(m, n, dtype=x.dtype, device=x.device)
    if not m:
        return out
    block_m, block_n, groups = next(tile for most, tile in _TILES if m <= most)
    if x.itemsize == 4:  # shared memory of 99 KiB holds two turns' tiles
        block_m, groups = min(block_m, 64), max(1, groups // 2)
    while k // weight.group % groups:
        groups //= 2
    _int4_matmul[triton.cdiv(n, block_n), triton.cdiv(m, block_m)](
        x,
        weight.packed,
        weight.scales,
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
        GROUPS=groups,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=2 if block_m == 16 else 4,
        num_stages=3,
    )
    return out


# The most rows of a step, and (rows of a tile, outputs of a tile, groups between two turns of the loop).
_TILES = ((16, (16, 32, 4)), (32, (32, 64, 4)), (64, (64, 64, 2)), (1 << 31, (128, 64, 1)))


def unpack_int4(weight: Int4Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [N, K] in `dtype`, for products of many rows."""
    n, k = weight.packed.shape[0], weight.packed.shape[1] * 2
    out = torch.empty(n, k, dtype=dtype, device=weight.packed.device)
    block = min(1024, triton.next_power_of_2(k // 2))
    _unpack[n, triton.cdiv(k // 2, block)](
        weight.packed, weight.scales, out, n, k, GROUP=weight.group, BLOCK=block, num_warps=4
    )
    return out
