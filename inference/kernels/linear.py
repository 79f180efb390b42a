"""Linear layers with packed weights, in the dtype of the checkpoint or quantised.

Each is a function of x [tokens, inputs] → x · weightᵀ + bias + residual [tokens, outputs]. With `out` the result is
written there; `residual` may be `out`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from inference.kernels.library import Library, element, require
from inference.kernels.pages import zeros

GROUP = 32  # inputs with one scale in four bits


class PackedLinear(Protocol):
    """A packed linear layer."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...


def _room(library: Library, outputs: int, words: int) -> torch.Tensor:
    """Memory for whole panels of `words` words for each output."""
    return zeros((-(-outputs // library.columns) * library.columns * words,), torch.int32)


class _Linear:
    """The base of the forms. A subclass packs `weight`, and sets its kernel and the addresses of the packed memory."""

    _kernel: str
    _addresses: tuple[int, ...]  # the kernel's arguments between x and the bias
    _form: tuple[int, ...]  # and those before x

    def __init__(self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._library = library
        self._outputs, self._inputs = weight.shape
        self._dtype = dtype
        self._form = (element(torch.empty(0, dtype=dtype)),)
        self._bias = None if bias is None else bias.to(dtype).contiguous()
        self._bias_address = None if self._bias is None else self._bias.data_ptr()

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        tokens, dtype = x.shape[0], self._dtype
        if out is None:
            out = x.new_empty(tokens, self._outputs)
        if getattr(self._library, self._kernel)(
            *self._form,
            require(x, (tokens, self._inputs), dtype, "x"),
            *self._addresses,
            self._bias_address,
            None if residual is None else require(residual, (tokens, self._outputs), dtype, "residual"),
            require(out, (tokens, self._outputs), dtype, "out"),
            tokens,
            self._outputs,
            self._inputs,
        ):
            raise MemoryError("not enough memory for a linear layer")
        return out


class DenseLinear(_Linear):
    """A linear layer in `weight`'s dtype, bfloat16 (with an even number of inputs) or float32; sums are in float32."""

    def __init__(self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(library, weight, bias, weight.dtype)
        is_bf16 = element(weight)
        if is_bf16 and self._inputs % 2:
            raise ValueError(f"a linear layer in bfloat16 has an even number of inputs, not {self._inputs}")
        pack, self._kernel = (library.pack_bf16, "linear_bf16") if is_bf16 else (library.pack_fp32, "linear_fp32")
        self._form = ()
        self._packed = _room(library, self._outputs, self._inputs // 2 if is_bf16 else self._inputs)
        self._addresses = (self._packed.data_ptr(),)
        weight = weight.contiguous()
        pack(weight.data_ptr(), *self._addresses, self._outputs, self._inputs)


class EightBitLinear(_Linear):
    """W8A8: weights in eight bits with a scale for each output, activations quantised with one for each token.

    With `scales` float32 [outputs] `weight` is int8, and computed with as it is; else it is rounded. x, bias, residual
    and result are of `dtype`. A token that isn't finite gets NaN.
    """

    _kernel = "linear_w8a8"

    def __init__(
        self,
        library: Library,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        dtype: torch.dtype,
        scales: torch.Tensor | None = None,
    ) -> None:
        super().__init__(library, weight, bias, dtype)
        self._packed = _room(library, self._outputs, -(-self._inputs // 4))
        columns = -(-self._outputs // library.columns) * library.columns
        self._scales = torch.zeros(columns, dtype=torch.float32)
        self._sums = torch.empty(columns, dtype=torch.int32)
        self._addresses = (self._packed.data_ptr(), self._scales.data_ptr(), self._sums.data_ptr())
        plain = numbers = None
        if scales is None:
            weight = weight.float().contiguous()
            plain = weight.data_ptr()
        else:
            numbers = require(weight, (self._outputs, self._inputs), torch.int8, "weight")
            self._scales[: self._outputs] = scales
        library.pack_w8a8(plain, numbers, *self._addresses, self._outputs, self._inputs)


class FourBitLinear(_Linear):
    """Weights in four bits with a scale for each 32 inputs of an output, activations in bfloat16.

    x, bias, residual and result are of `dtype`. The number of inputs is a multiple of 32.
    """

    _kernel = "linear_w4"

    def __init__(
        self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype
    ) -> None:
        super().__init__(library, weight, bias, dtype)
        if self._inputs % GROUP:
            raise ValueError(f"a linear layer in four bits has a multiple of {GROUP} inputs, not {self._inputs}")
        self._packed = _room(library, self._outputs, self._inputs // 8)
        columns = -(-self._outputs // library.columns) * library.columns
        self._scales = torch.empty(columns * (self._inputs // GROUP), dtype=torch.bfloat16)
        self._addresses = (self._packed.data_ptr(), self._scales.data_ptr())
        weight = weight.float().contiguous()
        library.pack_w4(weight.data_ptr(), *self._addresses, self._outputs, self._inputs)
