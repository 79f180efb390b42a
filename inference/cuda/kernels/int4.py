"""Weights of four bits in groups along K: quantised, multiplied with rows, and unpacked for very many of them.

A word of 32 bits holds four pairs of neighbouring numbers of its group, the first of a pair in its low half. So the
four bits of both become two floats at once, without a conversion: they are the lowest bits of a power of two so large
that they count ones. What that power and the group's zero add to a product is taken off by the sum of the rows.

A product of few tiles is divided along K, so that all processors have work: the program that ends last adds the parts
up, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

GROUP = 128
MAX_ROWS = 1024  # above, unpacking the weight once and cuBLAS take less time
ZERO = 15  # the bits of a scale that hold its group's zero
FEW_TILES = 256  # up to here a product's tiles are divided along K


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """weight[n, k] ≈ (number[n, k] − zero[g, n]) · scale[g, n] with g = k // GROUP.

    `words` int32 [N, K / 8]: bits 4 i of the halves of a group's word w are its numbers 32 i + 2 w and 32 i + 2 w + 1.
    `scales` int32 [K / GROUP, N]: a float32's bits, of which the lowest four are the zero. `done` int32 [FEW_TILES]:
    how many parts of each tile of a divided product are there, 0 between two products.
    """

    words: torch.Tensor
    scales: torch.Tensor
    done: torch.Tensor


def quantise_int4(weight: torch.Tensor) -> Int4Weight:
    """Return `weight` [N, K] rounded to four bits; K must be a multiple of GROUP."""
    rows, width = weight.shape
    if width % GROUP:
        raise ValueError(f"a width of {width} has no whole number of groups of {GROUP}")
    grouped = weight.float().view(rows, -1, GROUP)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    bits = ((high - low) / 15).clamp(min=1e-12).view(torch.int32) & ~ZERO
    scales = bits.view(torch.float32)
    zeros = (-low / scales).round().clamp(max=15)
    numbers = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, 15).int()
    words = torch.zeros(rows, width // GROUP, GROUP // 8, dtype=torch.int32, device=weight.device)
    for pair, both in enumerate(numbers.view(rows, -1, 4, GROUP // 8, 2).unbind(2)):
        words |= both[..., 0] << 4 * pair | both[..., 1] << 4 * pair + 16
    done = torch.zeros(FEW_TILES, dtype=torch.int32, device=weight.device)
    return Int4Weight(words.view(rows, width // 8), (bits | zeros.int()).T.contiguous(), done)


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


@triton.jit
def _pair(word, pair: tl.constexpr, dtype: tl.constexpr):
    """Return the pair of each word [N, W] as floats [N, 2 W] above a power of two."""
    moved = word >> 4 * pair
    if dtype == tl.float32:
        first, second = _whole(moved & 15, dtype), _whole((moved >> 16) & 15, dtype)
    else:
        both = moved & 0x000F000F | (0x64006400 if dtype == tl.float16 else 0x43004300)
        first, second = both.to(tl.int16).to(dtype, bitcast=True), (both >> 16).to(tl.int16).to(dtype, bitcast=True)
    return tl.join(first, second).reshape(word.shape[0], 2 * word.shape[1])


@triton.jit
def _finish(
    acc,
    bias,
    residual,
    out,
    parts,
    done,
    n,
    m,
    M,
    N,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Store a tile, or its part: then the program that counts the last part adds all of them up and stores the tile."""
    at = m[None, :] * N + n[:, None]
    inside = (n < N)[:, None] & (m < M)[None, :]
    is_last = True
    if PARTS > 1:
        tl.store(parts + tl.program_id(2) * M * N + at, acc, mask=inside)
        tl.debug_barrier()  # all of the part is stored before it is counted
        at_done = done + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        is_last = tl.atomic_add(at_done, 1, sem="acq_rel") == PARTS - 1
        if is_last:
            tl.store(at_done, 0)
            acc = tl.zeros_like(acc)
            for part in range(PARTS):
                acc += tl.load(parts + part * M * N + at, mask=inside, other=0.0, cache_modifier=".cg")
    if is_last:
        if HAS_BIAS:
            acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
        if HAS_RESIDUAL:
            acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M"])
def _int4_matmul(
    x,
    words,
    scales,
    bias,
    residual,
    out,
    parts,
    done,
    M,
    N,
    K,
    x_stride,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BY_SUMS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    WORDS: tl.constexpr = GROUP // 8
    RUN: tl.constexpr = GROUP // 4
    dtype: tl.constexpr = x.dtype.element_ty
    POWER: tl.constexpr = 1024.0 if dtype == tl.float16 else 128.0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    part_k = K // PARTS
    begin = tl.program_id(2) * part_k
    row = n % N
    at_words = words + row.to(tl.int64)[:, None] * (K // 8) + begin // 8 + tl.arange(0, WORDS)[None, :]
    at_scales = scales + begin // GROUP * N + row
    at_x = x + m[None, :] * x_stride + begin + tl.arange(0, RUN)[:, None]
    real = (m < M)[None, :]  # rows that pad the tile read nothing
    one = tl.full([BLOCK_N, WORDS], 1.0, tl.float32).to(dtype)
    ones = tl.join(one, one).reshape(BLOCK_N, RUN)  # made as the numbers are, so that both read the rows alike
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, part_k // GROUP, GROUPS):
        for ahead in tl.static_range(GROUPS):
            group = start + ahead
            word = tl.load(at_words + group * WORDS, eviction_policy="evict_first")
            scale = tl.load(at_scales + group * N)
            product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for pair in tl.static_range(4):
                a = tl.load(at_x + group * GROUP + pair * RUN, mask=real, other=0.0)
                numbers = _pair(word, pair, dtype)
                if BY_SUMS:
                    total = tl.dot(ones, a, total, input_precision="ieee")
                else:
                    numbers -= _whole(scale & 15, dtype)[:, None]
                product = tl.dot(numbers, a, product, input_precision="ieee")
            if BY_SUMS:
                product -= total * ((scale & 15).to(tl.float32) + POWER)[:, None]
            acc += product * (scale & -16).to(tl.float32, bitcast=True)[:, None]
    _finish(acc, bias, residual, out, parts, done, n, m, M, N, HAS_BIAS, HAS_RESIDUAL, PARTS)


@triton.jit
def _unpack(words, scales, out, N, K, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    WORDS: tl.constexpr = GROUP // 8
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = j < K // 8
    word = tl.load(words + row * (K // 8) + j, mask=real, other=0)
    scale = tl.load(scales + (j // WORDS) * N + row, mask=real, other=0)
    zero = scale & 15
    wide = (scale & -16).to(tl.float32, bitcast=True)
    at = out + row * K + (j // WORDS) * GROUP + 2 * (j % WORDS)
    for pair in tl.static_range(4):
        for half in tl.static_range(2):
            number = (word >> (4 * pair + 16 * half)) & 15
            value = ((number - zero) * wide).to(out.dtype.element_ty)
            tl.store(at + (GROUP // 4 * pair + half), value, mask=real)


def int4_matmul(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x · weightᵀ + bias + residual [M, N] in the dtype of `x` [M, K], for at most MAX_ROWS rows."""
    (m, k), n = x.shape, weight.words.shape[0]
    out = torch.empty(m, n, dtype=x.dtype, device=x.device)
    if not m:
        return out
    block_m, block_n, groups, parts, warps, stages = next(tile for most, tile in _TILES if m <= most)
    is_wide = x.itemsize == 4  # what the power of two adds has more bits than a sum
    if is_wide:  # shared memory of 99 KiB holds two turns' tiles
        block_m, groups = min(block_m, 64), max(1, groups // 2)
    across, down = triton.cdiv(n, block_n), triton.cdiv(m, block_m)
    if across * down > FEW_TILES:
        parts = 1
    while k // GROUP % parts:
        parts //= 2
    while k // GROUP // parts % groups:
        groups //= 2
    scratch = torch.empty(parts, m, n, dtype=torch.float32, device=x.device) if parts > 1 else out
    _int4_matmul[across, down, parts](
        x,
        weight.words,
        weight.scales,
        out if bias is None else bias,
        out if residual is None else residual,
        out,
        scratch,
        weight.done,
        m,
        n,
        k,
        x.stride(0),
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        BY_SUMS=m <= 32 and not is_wide,
        PARTS=parts,
        GROUP=GROUP,
        GROUPS=groups,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=warps,
        num_stages=stages,
    )
    return out


# The most rows of a step, and (rows of a tile, outputs of a tile, groups between two turns of the loop, parts of few
# tiles, warps, stages): the quickest on an H200.
_TILES = (
    (8, (8, 32, 4, 4, 2, 2)),
    (16, (16, 64, 4, 4, 4, 2)),
    (32, (32, 64, 2, 4, 4, 2)),
    (64, (64, 64, 1, 4, 4, 3)),
    (1 << 31, (128, 64, 1, 2, 4, 3)),
)


def unpack_int4(weight: Int4Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [N, K] in `dtype`, for products of many rows."""
    n, k = weight.words.shape[0], weight.words.shape[1] * 8
    out = torch.empty(n, k, dtype=dtype, device=weight.words.device)
    block = min(256, triton.next_power_of_2(k // 8))
    _unpack[n, triton.cdiv(k // 8, block)](
        weight.words, weight.scales, out, n, k, GROUP=GROUP, BLOCK=block, num_warps=4
    )
    return out
