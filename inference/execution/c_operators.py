"""The tier of own kernels in C: linear layers in the checkpoint's dtype or quantised, attention, norms, activations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import torch

from inference.execution.attention.base import Attention
from inference.execution.attention.c import CAttention, unsupported
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.kv_cache import KVCache
from inference.execution.linear import EightBits, Linear, Weight, wide
from inference.execution.low_rank import LowRank, Part
from inference.execution.operators import Operators
from inference.kernels.elementwise import gelu_mul, rms_norm, silu_mul, softcap
from inference.kernels.experts import combine, route
from inference.kernels.library import Library
from inference.kernels.linear import GROUP, DenseLinear, EightBitLinear, FourBitLinear
from inference.kernels.low_rank import LowRankStep, PackedAdapter
from inference.sampling.cpu_passes import CPUPasses
from inference.sampling.passes import Passes

REPEATED = 512  # tokens of a step up to which what is between its kernels counts


class COperators(Operators):
    """With `quantization` "w8a8" every linear layer has eight bits; with "int4" four, but the head and
    those whose number of inputs is no multiple of GROUP. With "" those have that are stored in int8.
    """

    exact = True

    def __init__(self, library: Library, quantization: str = "") -> None:
        self._library = library
        self.quantization = quantization
        self.kept = frozenset({torch.int8} if quantization != "int4" else ())
        self.tier = f"C kernels ({library.level})"

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, *, is_head: bool = False) -> Linear:
        if isinstance(weight, EightBits) and weight.numbers.dtype in self.kept:
            return EightBitLinear(self._library, weight.numbers, bias, dtype=weight.dtype, scales=weight.scales)
        weight = wide(weight)
        if not self.quantization:
            return DenseLinear(self._library, weight, bias)
        # The head's logits decide between tokens directly, where four bits show most.
        is_narrow = self.quantization == "int4" and not is_head and weight.shape[1] % GROUP == 0
        form = FourBitLinear if is_narrow else EightBitLinear
        return form(self._library, weight, bias, dtype=weight.dtype)

    def router(self, weight: torch.Tensor) -> Linear:
        return DenseLinear(self._library, weight)

    def low_rank(self) -> LowRank:
        return CLowRank(self._library)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(self._library, x, weight, eps)

    def silu_mul(self, both: torch.Tensor) -> torch.Tensor:
        return silu_mul(self._library, both)

    def gelu_mul(self, both: torch.Tensor) -> torch.Tensor:
        return gelu_mul(self._library, both)

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        return softcap(self._library, x, cap)

    def route(
        self, logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return route(self._library, logits, chosen, is_normalised=is_normalised, is_shared=is_shared)

    def combine(
        self, rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        return combine(self._library, rows, places, weights, residual)

    def repeated(
        self, attention: Attention, compute: Callable[..., torch.Tensor], *inputs: torch.Tensor, key: Hashable = ()
    ) -> torch.Tensor:
        if isinstance(attention, CAttention) and len(inputs[0]) <= REPEATED:
            return attention.repeated(compute, *inputs, key=key)
        return compute(*inputs)

    def passes(self) -> Passes:
        return CPUPasses(self._library)

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        if unsupported(cache):
            return ReferenceAttention(cache, max_rows=max_rows, max_blocks=max_blocks)
        return CAttention(self._library, cache, max_rows=max_rows, max_blocks=max_blocks)

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
        if isinstance(attention, CAttention):
            return attention.rope_store(layer, joint, rotations, heads, query_norm, key_norm, eps)
        return super().rope_store(attention, layer, joint, rotations, heads, query_norm, key_norm, eps)


class CLowRank(LowRank):
    """A `LowRank` by one call for each layer, which is recorded once for every step of so many tokens."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library
        self._step = LowRankStep(library)

    def pack(self, layers: Mapping[int, Sequence[Part]]) -> PackedAdapter:
        parts = {place: [(part.begin, part.down, part.up) for part in layers[place]] for place in layers}
        return PackedAdapter(self._library, self.places, parts)

    def add(self, place: int, x: torch.Tensor, out: torch.Tensor) -> None:
        self._step.add(place, x, out)

    def _tell(self, spans: Sequence[tuple[PackedAdapter, int, int]], tokens: int) -> Hashable:
        return self._step.tell(spans)
