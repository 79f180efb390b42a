"""Attention by the Triton kernels, on CUDA: the step's rows of few queries by one kernel, those of many by another."""

from __future__ import annotations

import numpy as np
import torch

from inference.cuda.kernels.decode import decode
from inference.cuda.kernels.prefill import prefill
from inference.cuda.kernels.rope import rotate_and_store
from inference.cuda.kernels.store import store
from inference.execution.attention.base import Attention, AttentionInputs
from inference.execution.kv_cache import KVCache

FEW = 4  # queries of a row that the splitting kernel takes: a decoding row's own and its drafts


class TritonAttention(Attention):
    """Float8 K/V are stored as they are, without scales: keys and values are far below its largest."""

    name = "triton"
    # A row's result doesn't depend on its batch; but a token alone and in a chunk are computed by different kernels.
    exact = False

    def __init__(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> None:
        super().__init__(cache, max_rows=max_rows, max_blocks=max_blocks)
        on_gpu = cache.device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(cache.device).multi_processor_count if on_gpu else 1
        self._few = 0  # the most queries of a row that has few
        self._has_many = False

    def prepare(self, inputs: AttentionInputs) -> None:
        super().prepare(inputs)
        counts = np.diff(inputs.host_begins)
        few = counts[counts <= FEW]
        most = int(few.max()) if len(few) else 0
        self._few = most if most <= 1 else FEW  # one variant of the kernel for all numbers of drafts
        self._has_many = len(few) < len(counts)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        cached = self.cache.layers[layer]
        key, value = (part if part.stride(2) == 1 else part.contiguous() for part in (key, value))
        store(key, value, cached.keys, cached.values, self.inputs.places)

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
        """Return the rotated queries of `joint`, and store its rotated keys and its values."""
        cached = self.cache.layers[layer]
        shape = cached.shape
        return rotate_and_store(
            joint.view(len(joint), -1, shape.key_dim),
            torch.view_as_real(rotations),
            cached.keys,
            cached.values,
            self.inputs.places,
            query_heads=heads,
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
        cached = self.cache.layers[layer]
        inputs = self.inputs
        query = query if query.stride(1) == query.shape[2] and query.stride(2) == 1 else query.contiguous()
        out = torch.empty(*query.shape[:2], cached.shape.value_dim, dtype=query.dtype, device=query.device)
        step = (query, cached.keys, cached.values, inputs.begins, inputs.lengths, inputs.slots, inputs.tables, out)
        if self._few:
            decode(
                *step,
                scale=scale,
                processors=self._processors,
                max_queries=self._few,
                window=window,
                softcap=softcap,
                sinks=sinks,
            )
        if self._has_many:
            prefill(
                *step,
                scale=scale,
                min_queries=self._few + 1,
                window=window,
                softcap=softcap,
                sinks=sinks,
            )
        return out
