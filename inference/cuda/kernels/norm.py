"""RMS norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm(
    hidden,
    weight,
    out,
    eps,
    hidden_stride,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED_WIDTH)
    mask = column < WIDTH
    x = tl.load(hidden + row * hidden_stride + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, (x * scale * w).to(out.dtype.element_ty), mask=mask)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return hidden / sqrt(mean(hidden²) + eps) · weight for each row of `hidden` [T, width]."""
    out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    rows, width = hidden.shape
    if not rows:
        return out
    padded = triton.next_power_of_2(width)
    _rms_norm[(rows,)](
        hidden,
        weight,
        out,
        eps,
        hidden.stride(0),
        WIDTH=width,
        PADDED_WIDTH=padded,
        num_warps=max(1, min(16, padded // 512)),
    )
    return out
