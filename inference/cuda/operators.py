"""The tier of Triton kernels, on CUDA: norms, activations, rope with the K/V write, attention, and linear layers.

Few rows are multiplied by kernels that read each weight once; many by cuBLAS (torch) where it has the product.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch.nn.functional import linear
from triton.runtime import driver

from inference.cuda.attention import TritonAttention
from inference.cuda.kernels.activation import gelu_mul, silu_mul
from inference.cuda.kernels.experts import Arrangement, arrange, combine, grouped_matmul, route
from inference.cuda.kernels.int4 import GROUP as INT4_GROUP
from inference.cuda.kernels.int4 import MAX_ROWS as INT4_ROWS
from inference.cuda.kernels.int4 import int4_matmul, quantise_int4, unpack_int4
from inference.cuda.kernels.low_rank import FEW, LowRankStep, PackedAdapter
from inference.cuda.kernels.matmul import scaled_matmul
from inference.cuda.kernels.matvec import MAX_ROWS, matvec
from inference.cuda.kernels.norm import rms_norm
from inference.cuda.kernels.quantise import in_eight_bits, quantise
from inference.execution.attention.base import Attention
from inference.execution.experts import Activation, ExpertProducts
from inference.execution.kv_cache import KVCache
from inference.execution.linear import EightBits, Linear, Weight, wide
from inference.execution.low_rank import LowRank, Part
from inference.execution.operators import Operators

DENSE_ROWS = 16  # up to here reading the weight is all that counts; above, cuBLAS is as fast
ROWWISE_SIZE = 16  # both sizes of a float8 weight are multiples of this where cuBLAS multiplies by it
EIGHT_BITS = {"w8a8": torch.int8, "fp8": torch.float8_e4m3fn}
FLOAT8_CAPABILITY = (8, 9)  # the first with instructions for it: Triton compiles no kernel with float8 for older ones

Stored = tuple[torch.Tensor, torch.Tensor | None]
"""A weight in a dtype of its own, or in eight bits with its scales."""


class TritonOperators(Operators):
    """Operators on CUDA. `quantization` "w8a8" and "fp8" compute in eight bits, a scale per token and per channel; with
    "int4" the weights have four bits in groups, the head eight; with "" those layers have eight that are stored so.
    """

    exact = False  # cuBLAS chooses its order of summation by the number of rows

    def __init__(self, device: torch.device, quantization: str = "") -> None:
        """Raise ValueError where the device lacks what `quantization` needs, and what Triton raises where it can launch
        no kernel, as without a C compiler (RuntimeError).
        """
        self.device = device
        self.quantization = quantization
        self.tier = "Triton kernels"
        self._has_rowwise = False
        self.kept = frozenset(dtype for name, dtype in EIGHT_BITS.items() if quantization in {"", name})
        if device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability < FLOAT8_CAPABILITY:
                self.kept -= {torch.float8_e4m3fn}
                if quantization == "fp8":
                    raise ValueError(
                        "quantization fp8 needs a GPU of compute capability 8.9 or above, and this one has "
                        f"{capability[0]}.{capability[1]}: set quantization to w8a8 or int4"
                    )
            self._has_rowwise = capability >= (9, 0)
            driver.active.get_current_target()  # compiles what launches kernels, else the first one would do that
            self.tier = f"Triton kernels ({torch.cuda.get_device_name(device)}, sm_{capability[0]}{capability[1]})"

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, *, is_head: bool = False) -> Linear:
        if self.quantization == "int4" and not is_head and weight.shape[1] % INT4_GROUP == 0:
            return FourBitLinear(wide(weight), bias)
        numbers, scales = self._stored(weight)
        if scales is None:
            return DenseLinear(numbers, bias)
        return EightBitLinear(numbers, scales, bias, has_rowwise=self._has_rowwise)

    def _stored(self, weight: Weight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the numbers that a layer of `weight` is computed with, and their scales if they have eight bits."""
        if isinstance(weight, EightBits) and weight.numbers.dtype in self.kept:
            return weight.numbers, weight.scales
        if not self.quantization:
            return wide(weight), None
        return in_eight_bits(wide(weight), EIGHT_BITS.get(self.quantization, torch.int8))

    def router(self, weight: torch.Tensor) -> Linear:
        return DenseLinear(weight, None)

    def low_rank(self) -> LowRank:
        return TritonLowRank(self.device)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def silu_mul(self, both: torch.Tensor) -> torch.Tensor:
        return silu_mul(both)

    def gelu_mul(self, both: torch.Tensor) -> torch.Tensor:
        return gelu_mul(both)

    def route(
        self, logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return route(logits, chosen, is_normalised=is_normalised, is_shared=is_shared)

    def products(self, of_experts: Iterable[tuple[Weight, Weight]], activation: Activation) -> ExpertProducts:
        """Experts have eight bits with "int4" too: their product has no kernel for four."""
        return GroupedProducts(((self._stored(both), self._stored(down)) for both, down in of_experts), activation)

    def combine(
        self, rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        return combine(rows, places, weights, residual)

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        return TritonAttention(cache, max_rows=max_rows, max_blocks=max_blocks)

    def rope_store(
        self,
        attention: Attention,
        layer: int,
        joint: torch.Tensor,
        rotations: torch.Tensor,
        heads: int,
        query_norm: torch.Tensor | None,
        key_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        shape = attention.cache.layers[layer].shape
        if isinstance(attention, TritonAttention) and shape.key_dim == shape.value_dim:
            return attention.rope_store(layer, joint, rotations, heads, query_norm, key_norm, eps)
        return super().rope_store(attention, layer, joint, rotations, heads, query_norm, key_norm, eps)


class TritonLowRank(LowRank):
    """A `LowRank` of two launches for each layer, whatever number of adapters its tokens have."""

    captured = FEW

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._step = LowRankStep(device)

    def pack(self, layers: Mapping[int, Sequence[Part]]) -> PackedAdapter:
        parts = {place: [(part.begin, part.down, part.up) for part in layers[place]] for place in layers}
        if any(sum(len(down) for _, down, _ in parts[place]) > self.most_ranks[place] for place in parts):
            raise ValueError("an adapter has more ranks than were told")
        return PackedAdapter(self._device, self.places, parts)

    def add(self, place: int, x: torch.Tensor, out: torch.Tensor) -> None:
        self._step.add(place, x, out, self.most_ranks[place])

    def _tell(self, spans: Sequence[tuple[PackedAdapter, int, int]], tokens: int) -> Hashable:
        self._step.tell(spans, tokens)
        return ()  # nothing of a step is recorded but in graphs of the device, which read it from memory


class DenseLinear:
    """A `Linear` in the weight's own dtype."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if len(x) <= DENSE_ROWS:
            return matvec(x, self._weight, x.dtype, bias=self._bias, residual=residual)
        if residual is not None and self._bias is None:
            return torch.addmm(residual, x, self._weight.T)
        result = linear(x, self._weight, self._bias)
        return result if residual is None else residual + result


class EightBitLinear:
    """A `Linear` of int8 or float8 weights with a scale per channel, on rows quantised with a scale each.

    int8 is exact: the same row gives the same bits in any batch.
    """

    __slots__ = ("_bias", "_has_rowwise", "_scales", "_weight")

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, has_rowwise: bool
    ) -> None:
        self._weight, self._scales = weight.contiguous(), scales
        self._bias = bias
        # cuBLAS takes no other sizes; a vocabulary may have any, and then some 65 answers at once would be refused.
        is_aligned = all(size % ROWWISE_SIZE == 0 for size in weight.shape)
        self._has_rowwise = has_rowwise and is_aligned and weight.dtype is torch.float8_e4m3fn

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        numbers, scales = quantise(x, self._weight.dtype)
        if len(x) <= MAX_ROWS:
            return matvec(
                numbers,
                self._weight,
                x.dtype,
                x_scales=scales,
                weight_scales=self._scales,
                bias=self._bias,
                residual=residual,
            )
        if self._has_rowwise and x.dtype is torch.bfloat16:
            result = torch._scaled_mm(  # noqa: SLF001 - torch's only name for it
                numbers,
                self._weight.T,
                scale_a=scales[:, None],
                scale_b=self._scales[None],
                bias=self._bias,
                out_dtype=x.dtype,
                use_fast_accum=False,  # sums in float32, as those of few rows
            )
            return result if residual is None else result.add_(residual)
        return scaled_matmul(numbers, self._weight, scales, self._scales, x.dtype, self._bias, residual)


class FourBitLinear:
    """A `Linear` of four-bit weights in groups: rows of 16 bits, few by a kernel, many on the unpacked weight."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = quantise_int4(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if len(x) <= INT4_ROWS:
            return int4_matmul(x, self._weight, self._bias, residual)
        result = linear(x, unpack_int4(self._weight, x.dtype), self._bias)
        return result if residual is None else result.add_(residual)


class GroupedProducts:
    """The networks of all experts (`ExpertProducts`), in one kernel whatever the routing, so that graphs hold it."""

    def __init__(self, experts: Iterable[tuple[Stored, Stored]], activation: Activation) -> None:
        """Raise ValueError where the experts are stored in different dtypes."""
        both, down = zip(*experts, strict=True)
        self._experts = len(both)
        self._activation = activation
        self._gate_up, self._down = _GroupedLinear(both), _GroupedLinear(down)

    def __call__(self, x: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        arrangement = arrange(numbers, self._experts)
        joint = self._gate_up(x, arrangement, chosen=numbers.shape[1])
        return self._down(self._activation(joint), arrangement), arrangement.places


class _GroupedLinear:
    def __init__(self, weights: tuple[Stored, ...]) -> None:
        if len(dtypes := {weight.dtype for weight, _ in weights}) > 1:
            raise ValueError(f"the experts of a layer are in {' and '.join(sorted(map(str, dtypes)))}")
        self._weight = torch.stack([weight for weight, _ in weights])
        scales = [scale for _, scale in weights if scale is not None]
        self._scales = torch.stack(scales) if scales else None

    def __call__(self, x: torch.Tensor, arrangement: Arrangement, *, chosen: int = 0) -> torch.Tensor:
        if self._scales is None:
            return grouped_matmul(x, self._weight, arrangement, x.dtype, chosen=chosen)
        numbers, scales = quantise(x, self._weight.dtype)
        return grouped_matmul(
            numbers,
            self._weight,
            arrangement,
            x.dtype,
            chosen=chosen,
            x_scales=scales,
            weight_scales=self._scales,
        )
