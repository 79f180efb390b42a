"""Attention over paged K/V by the C kernels: in place over the blocks, in one order of summation for each query."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from inference.execution.attention.base import Attention
from inference.execution.kv_cache import KVCache
from inference.kernels import attention as kernels
from inference.kernels.library import Library
from inference.kernels.program import Programs


def unsupported(cache: KVCache) -> str:
    """Return why the kernels can't serve this cache, or an empty text when they can."""
    if cache.device.type != "cpu":
        return f"its K/V are on {cache.device}"
    reasons = (
        kernels.unsupported(shape.key_dim, shape.value_dim, cache.block_size, cache.spec.dtype)
        for shape in cache.spec.layers
    )
    return next((reason for reason in reasons if reason), "")


class CAttention(Attention):
    """Attention on a CPU. The cache isn't `unsupported`; only the kernels read and write it."""

    name = "C kernels"
    exact = True

    def __init__(self, library: Library, cache: KVCache, *, max_rows: int, max_blocks: int) -> None:
        super().__init__(cache, max_rows=max_rows, max_blocks=max_blocks)
        self._library = library
        self._programs = Programs(library)

    def repeated(self, compute: Callable[..., torch.Tensor], *inputs: torch.Tensor, key: Hashable = ()) -> torch.Tensor:
        """Do what `Operators.repeated` does, for a `compute` with this attention: always the same one."""
        own = self.inputs
        addresses = [part.data_ptr() for part in (own.begins, own.lengths, own.slots, own.tables, own.places)]
        shapes = [part.shape for part in inputs]
        return self._programs.run((key, len(own.lengths), *shapes, *addresses), compute, *inputs)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        cached = self.cache.layers[layer]
        kernels.store(
            self._library,
            key.contiguous(),
            value.contiguous(),
            self.inputs.places,
            cached.keys,
            cached.values,
            cached.scales,
        )

    def rope_store(
        self,
        layer: int,
        joint: torch.Tensor,
        rotations: torch.Tensor,
        heads: int,
        query_norm: torch.Tensor | None,
        key_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Do what `Operators.rope_store` does, in one pass."""
        cached = self.cache.layers[layer]
        return kernels.rope_store(
            self._library,
            joint,
            rotations,
            self.inputs.places,
            cached.keys,
            cached.values,
            cached.scales,
            heads=heads,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=eps,
        )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        cached, inputs = self.cache.layers[layer], self.inputs
        return kernels.attend(
            self._library,
            query.contiguous(),
            cached.keys,
            cached.values,
            inputs.begins,
            inputs.lengths,
            inputs.slots,
            inputs.tables,
            cached.scales,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=None if sinks is None else sinks.float().contiguous(),
        )
