"""Linear layers with packed weights, in the dtype of the checkpoint or quantised.

Each is a function of x [tokens, inputs] → x · weightᵀ + bias + residual [tokens, outputs]. With `out` the result is
written there; `residual` may be `out`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from inference.kernels.cpu.library import Library, element, require
from inference.kernels.cpu.pages import zeros

GROUP = 32  # inputs with one scale in four bits


class PackedLinear(Protocol):
    """A packed linear layer."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...


def _packed(library: Library, outputs: int, words: int) -> torch.Tensor:
    """Memory for whole panels of `words` words for each output."""
    return zeros((-(-outputs // library.columns) * library.columns * words,), torch.int32)


class _Base:
    def __init__(self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._library = library
        self._outputs, self._inputs = weight.shape
        self._dtype = dtype
        element(torch.empty(0, dtype=dtype))
        self._bias = None if bias is None else bias.to(dtype).contiguous()
        self._bias_address = None if self._bias is None else self._bias.data_ptr()

    def _arguments(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[int, int | None, torch.Tensor]:
        """Checked addresses of x and residual, and the result's memory."""
        tokens = x.shape[0]
        source = require(x, (tokens, self._inputs), self._dtype, "x")
        added = None if residual is None else require(residual, (tokens, self._outputs), self._dtype, "residual")
        return source, added, x.new_empty(tokens, self._outputs)


class DenseLinear(_Base):
    """A linear layer in `weight`'s dtype, bfloat16 (with an even number of inputs) or float32; sums are in float32."""

    def __init__(self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(library, weight, bias, weight.dtype)
        is_bf16 = element(weight)
        if is_bf16 and self._inputs % 2:
            raise ValueError(f"a linear layer in bfloat16 has an even number of inputs, not {self._inputs}")
        pack, self._run = (
            (library.pack_bf16, library.linear_bf16) if is_bf16 else (library.pack_fp32, library.linear_fp32)
        )
        self._packed = _packed(library, self._outputs, self._inputs // 2 if is_bf16 else self._inputs)
        self._address = self._packed.data_ptr()
        weight = weight.contiguous()
        pack(weight.data_ptr(), self._address, self._outputs, self._inputs)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        source, added, out = self._arguments(x, residual)
        self._run(
            source,
            self._address,
            self._bias_address,
            added,
            out.data_ptr(),
            x.shape[0],
            self._outputs,
            self._inputs,
        )
        return out


class EightBitLinear(_Base):
    """W8A8: weights in eight bits with a scale for each output, activations quantised with one for each token.

    x, bias, residual and result are of `dtype`. A token that isn't finite gets NaN.
    """

    def __init__(
        self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype
    ) -> None:
        super().__init__(library, weight, bias, dtype)
        self._is_bf16 = int(dtype is torch.bfloat16)
        self._packed = _packed(library, self._outputs, -(-self._inputs // 4))
        columns = -(-self._outputs // library.columns) * library.columns
        self._scales = torch.empty(columns, dtype=torch.float32)
        self._sums = torch.empty(columns, dtype=torch.int32)
        self._addresses = (self._packed.data_ptr(), self._scales.data_ptr(), self._sums.data_ptr())
        weight = weight.float().contiguous()
        library.pack_w8a8(weight.data_ptr(), *self._addresses, self._outputs, self._inputs)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        source, added, out = self._arguments(x, residual)
        if self._library.linear_w8a8(
            self._is_bf16,
            source,
            *self._addresses,
            self._bias_address,
            added,
            out.data_ptr(),
            x.shape[0],
            self._outputs,
            self._inputs,
        ):
            raise MemoryError("not enough memory for a linear layer's activations")
        return out


class FourBitLinear(_Base):
    """Weights in four bits with a scale for each 32 inputs of an output, activations in bfloat16.

    x, bias, residual and result are of `dtype`. The number of inputs is a multiple of 32.
    """

    def __init__(
        self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype
    ) -> None:
        super().__init__(library, weight, bias, dtype)
        if self._inputs % GROUP:
            raise ValueError(f"a linear layer in four bits has a multiple of {GROUP} inputs, not {self._inputs}")
        self._is_bf16 = int(dtype is torch.bfloat16)
        self._packed = _packed(library, self._outputs, self._inputs // 8)
        columns = -(-self._outputs // library.columns) * library.columns
        self._scales = torch.empty(columns * (self._inputs // GROUP), dtype=torch.bfloat16)
        self._addresses = (self._packed.data_ptr(), self._scales.data_ptr())
        weight = weight.float().contiguous()
        library.pack_w4(weight.data_ptr(), *self._addresses, self._outputs, self._inputs)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        source, added, out = self._arguments(x, residual)
        if self._library.linear_w4(
            self._is_bf16,
            source,
            *self._addresses,
            self._bias_address,
            added,
            out.data_ptr(),
            x.shape[0],
            self._outputs,
            self._inputs,
        ):
            raise MemoryError("not enough memory for a linear layer's sums")
        return out
