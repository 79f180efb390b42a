"""The gated activations of MLPs: act(gate) · up from the joint projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _gated(joint, out, joint_stride, width, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    gate = tl.load(joint + row * joint_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(joint + row * joint_stride + width + column, mask=mask, other=0.0).to(tl.float32)
    if IS_GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate * tl.sigmoid(2.0 * inner)  # 0.5 · (1 + tanh(inner))
    else:
        active = gate * tl.sigmoid(gate)
    active = active.to(out.dtype.element_ty).to(tl.float32)  # as torch's own two steps round it
    tl.store(out + row * width + column, (active * up).to(out.dtype.element_ty), mask=mask)


def silu_mul(joint: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up [T, width] of `joint` [T, 2 · width], which holds gate before up."""
    return _launch(joint, gelu=False)


def gelu_mul(joint: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) · up [T, width] of `joint` [T, 2 · width], with gelu's approximation by tanh."""
    return _launch(joint, gelu=True)


def _launch(joint: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    rows, width = joint.shape[0], joint.shape[1] // 2
    out = torch.empty(rows, width, dtype=joint.dtype, device=joint.device)
    if rows:
        _gated[(rows, triton.cdiv(width, BLOCK))](joint, out, joint.stride(0), width, IS_GELU=gelu, BLOCK=BLOCK)
    return out
