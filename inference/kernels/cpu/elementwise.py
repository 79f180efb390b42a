"""Norms and activations in one pass over each row."""

from __future__ import annotations

import torch

from inference.kernels.cpu.library import Library, element, require


def rms_norm(
    library: Library, x: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x / rms(x) · weight of x [rows, width]; with `delta` [rows, width], first x += delta in place."""
    rows, width = x.shape
    out = torch.empty_like(x)
    library.rms_norm(
        element(x),
        require(x, (rows, width), x.dtype, "x"),
        None if delta is None else require(delta, (rows, width), x.dtype, "delta"),
        require(weight, (width,), x.dtype, "weight"),
        out.data_ptr(),
        rows,
        width,
        eps,
    )
    return out


def silu_mul(library: Library, both: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up [rows, width] of `both` [rows, 2 · width], gate first."""
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    address = require(both, (rows, 2 * width), both.dtype, "both")
    library.silu_mul(element(both), address, out.data_ptr(), rows, width)
    return out
