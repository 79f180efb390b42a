"""Quantising activations row by row, so that a row never depends on its batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@triton.jit
def _quantise(
    x, out, scales, stride, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    mask = column < WIDTH
    value = tl.load(x + row * stride + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0), 1e-12) / LARGEST
    scaled = tl.minimum(tl.maximum(value / scale, -LARGEST), LARGEST)
    if IS_INTEGER:
        scaled = tl.floor(scaled + 0.5)
    tl.store(out + row * WIDTH + column, scaled.to(out.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)


def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (`x` [T, width] in int8 or float8_e4m3fn, scales float32 [T]): x ≈ quantised · scale, row by row."""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        padded = triton.next_power_of_2(width)
        _quantise[(rows,)](
            x,
            out,
            scales,
            x.stride(0),
            LARGEST=LARGEST[dtype],
            IS_INTEGER=dtype is torch.int8,
            WIDTH=width,
            PADDED=padded,
            num_warps=max(1, min(16, padded // 512)),
        )
    return out, scales


def in_eight_bits(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (`weight` [..., N, K] in int8 or float8_e4m3fn, scales float32 [..., N]): weight ≈ quantised · scale."""
    largest = LARGEST[dtype]
    scales = weight.float().abs().amax(-1).clamp(min=1e-12) / largest
    scaled = weight.float() / scales[..., None]
    return (scaled.round() if dtype is torch.int8 else scaled).clamp(-largest, largest).to(dtype), scales
