"""Norms and activations in one pass over each row."""

from __future__ import annotations

import torch

from inference.kernels.library import Library, element, require


def rms_norm(
    library: Library, x: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x / rms(x) · weight of x [rows, width]; with `delta` [rows, width], first x += delta in place.

    `weight` is float32 [width].
    """
    rows, width = x.shape
    out = torch.empty_like(x)
    library.rms_norm(
        element(x),
        require(x, (rows, width), x.dtype, "x"),
        None if delta is None else require(delta, (rows, width), x.dtype, "delta"),
        require(weight, (width,), torch.float32, "weight"),
        out.data_ptr(),
        rows,
        width,
        eps,
    )
    return out


def silu_mul(library: Library, both: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up [rows, width] of `both` [rows, 2 · width], gate first."""
    return _gated(library, both, is_gelu=0)


def gelu_mul(library: Library, both: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) · up [rows, width] of `both` [rows, 2 · width], gate first; gelu by its form with tanh."""
    return _gated(library, both, is_gelu=1)


def _gated(library: Library, both: torch.Tensor, *, is_gelu: int) -> torch.Tensor:
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    address = require(both, (rows, 2 * width), both.dtype, "both")
    library.gated(element(both), is_gelu, address, out.data_ptr(), rows, width)
    return out


def softcap(library: Library, x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap · tanh(x / cap) of x [rows, width]."""
    rows, width = x.shape
    out = torch.empty_like(x)
    library.softcap(element(x), require(x, (rows, width), x.dtype, "x"), out.data_ptr(), rows, width, cap)
    return out
