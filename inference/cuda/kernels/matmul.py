"""Products of many rows with 8-bit weights: W8A8 and float8, a scale per row and per output channel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP_M = 8  # row tiles that share their weight tiles in the cache


@triton.jit(do_not_specialize=["M"])
def _scaled_matmul(
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
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    program = tl.program_id(0)
    across = tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * across)
    rows = tl.minimum(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
    m = (group * GROUP_M + program % (GROUP_M * across) % rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = program % (GROUP_M * across) // rows * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    at_x = x + (m % M).to(tl.int64)[:, None] * K + k[None, :]
    at_weight = weight + (n % N).to(tl.int64)[None, :] * K + k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if IS_INTEGER else tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(at_x)
            b = tl.load(at_weight)
        else:
            rest = K - start
            a = tl.load(at_x, mask=k[None, :] < rest, other=0.0)
            b = tl.load(at_weight, mask=k[:, None] < rest, other=0.0)
        # Products of float8 would be summed with fewer bits on Hopper unless each goes to float32 at once.
        acc = tl.dot(a, b, acc, max_num_imprecise_acc=0, out_dtype=acc.dtype)
        at_x += BLOCK_K
        at_weight += BLOCK_K
    inside = (m < M)[:, None] & (n < N)[None, :]
    result = acc.to(tl.float32) * tl.load(weight_scales + n, mask=n < N, other=0.0)[None, :]
    result *= tl.load(x_scales + m, mask=m < M, other=0.0)[:, None]
    if HAS_BIAS:
        result += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    if HAS_RESIDUAL:
        result += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def scaled_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (x · weightᵀ) · x_scales · weight_scales + bias + residual as `dtype` [M, N].

    `x` [M, K] and `weight` [N, K], contiguous, are both int8 (added up in int32: exact) or both float8_e4m3fn. The
    scales are float32 [M] and [N]; `residual` is contiguous [M, N].
    """
    (m, k), n = x.shape, weight.shape[0]
    out = torch.empty(m, n, dtype=dtype, device=x.device)
    if m:
        block_m, block_n, block_k = (64, 128, 128) if m <= 64 else (128, 128, 128)
        _scaled_matmul[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            x,
            weight,
            x_scales,
            weight_scales,
            x_scales if bias is None else bias,
            out if residual is None else residual,
            out,
            m,
            n,
            k,
            HAS_BIAS=bias is not None,
            HAS_RESIDUAL=residual is not None,
            IS_INTEGER=x.dtype is torch.int8,
            EVEN_K=k % block_k == 0,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP_M=GROUP_M,
            num_warps=8 if block_m == 128 else 4,
            num_stages=3,
        )
    return out
