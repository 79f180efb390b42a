"""Products of few rows: what decoding does. The weights are read once, at the memory's speed.

The weight is the left operand of the tensor cores' product and the few rows are its right one, padded to at least 8.
The order of summation is fixed by the weight's shape alone: a row gives the same bits in any batch of up to MAX_ROWS.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_ROWS = 64


@triton.jit(do_not_specialize=["M"])
def _matvec(
    x,
    weight,
    x_scales,
    weight_scales,
    bias,
    residual,
    out,
    M,
    N,
    K,
    x_stride,
    HAS_X_SCALES: tl.constexpr,
    HAS_WEIGHT_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    at_weight = weight + (n % N).to(tl.int64)[:, None] * K + k[None, :]
    at_x = x + m[None, :] * x_stride + k[:, None]
    real = (m < M)[None, :]  # rows that pad the tile read nothing
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.int32 if tl.int8 == COMPUTE else tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            w = tl.load(at_weight, eviction_policy="evict_first")
            a = tl.load(at_x, mask=real, other=0.0)
        else:
            rest = K - start
            w = tl.load(at_weight, mask=k[None, :] < rest, other=0.0, eviction_policy="evict_first")
            a = tl.load(at_x, mask=real & (k[:, None] < rest), other=0.0)
        acc = tl.dot(w.to(COMPUTE), a.to(COMPUTE), acc, input_precision="ieee", out_dtype=acc.dtype)
        at_weight += BLOCK_K
        at_x += BLOCK_K
    result = acc.to(tl.float32)
    if HAS_WEIGHT_SCALES:
        result *= tl.load(weight_scales + n, mask=n < N, other=0.0)[:, None]
    if HAS_X_SCALES:
        result *= tl.load(x_scales + m, mask=m < M, other=0.0)[None, :]
    if HAS_BIAS:
        result += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = m[None, :] * N + n[:, None]
    inside = (n < N)[:, None] & real
    if HAS_RESIDUAL:
        result += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def compute_type(x: torch.Tensor, weight: torch.Tensor) -> tl.dtype:
    """The type of the product: float8 numbers are exact in float16, int8 weights of wide rows in the rows' type."""
    if x.dtype is torch.int8:
        return tl.int8
    if weight.dtype is torch.float8_e4m3fn and x.dtype is torch.float8_e4m3fn:
        return tl.float16
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[x.dtype]


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    dtype: torch.dtype,
    *,
    x_scales: torch.Tensor | None = None,
    weight_scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (x · weightᵀ) · x_scales · weight_scales + bias + residual as `dtype` [M, N], for at most MAX_ROWS rows.

    `x` [M, K] and `weight` [N, K], its rows contiguous, are of one type, or `weight` is int8 or float8_e4m3fn and `x`
    of 16 or 32 bits (weight-only). The scales, where given, are float32 [M] and [N]; `residual` is contiguous [M, N].
    """
    (m, k), n = x.shape, weight.shape[0]
    out = torch.empty(m, n, dtype=dtype, device=x.device)
    if not m:
        return out
    block_n, block_k, warps, stages = _tile(m, weight.itemsize, x.itemsize)
    _matvec[(triton.cdiv(n, block_n),)](
        x,
        weight,
        out if x_scales is None else x_scales,
        out if weight_scales is None else weight_scales,
        out if bias is None else bias,
        out if residual is None else residual,
        out,
        m,
        n,
        k,
        x.stride(0),
        HAS_X_SCALES=x_scales is not None,
        HAS_WEIGHT_SCALES=weight_scales is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        EVEN_K=k % block_k == 0,
        COMPUTE=compute_type(x, weight),
        BLOCK_M=next(rows for rows in (8, 16, 32, 64) if m <= rows),
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=warps,
        num_stages=stages,
    )
    return out


def _tile(m: int, weight: int, x: int) -> tuple[int, int, int, int]:
    """Return BLOCK_N, BLOCK_K, warps and stages for so many rows and bytes of a number: the quickest on an H100
    or H200 that fit into 99 KiB of shared memory.
    """
    if x == 4:
        return 32, 64 if weight == 4 else 128, 4, 3
    if m <= 8:
        return 32, 512 if weight == 1 else 256, 2, 4
    if weight == 1:
        return (32, 256, 4, 4) if 16 < m <= 32 else (32, 512, 4, 4 if m <= 16 else 3)
    return 32, 256, 4, 4 if m <= 16 else 3
