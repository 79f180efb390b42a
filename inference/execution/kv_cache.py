"""The K/V tensors behind the block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer's K/V: heads and widths of a key and a value (they differ for some models)."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What must be known of a causal model to make room for its K/V: its attention layers in order."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        width = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in self.layers)
        return width * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's K/V by slot: `keys` [slots, kv_heads·key_dim], `values` [slots, kv_heads·value_dim].

    Slot = block · block_size + offset.
    """

    keys: torch.Tensor
    values: torch.Tensor
    shape: LayerShape

    def store(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the K/V of T tokens (`key` [T, kv_heads, key_dim] or flat) to their slots [T]."""
        tokens = slots.shape[0]
        self.keys.index_copy_(0, slots, key.reshape(tokens, self.keys.shape[1]))
        self.values.index_copy_(0, slots, value.reshape(tokens, self.values.shape[1]))


class KVCache:
    """Room for `blocks` blocks of `block_size` tokens in each layer.

    Block 0 is the null block: never written, so that its first slot reads as zeros wherever a gather is padded.
    """

    def __init__(self, spec: KVSpec, blocks: int, block_size: int) -> None:
        self.spec = spec
        self.blocks = blocks
        self.block_size = block_size
        # The operating system hands out zeroed pages on first touch: memory grows with use, up to `nbytes`.
        self.layers = tuple(
            LayerCache(
                torch.zeros(self.slots, layer.kv_heads * layer.key_dim, dtype=spec.dtype),
                torch.zeros(self.slots, layer.kv_heads * layer.value_dim, dtype=spec.dtype),
                layer,
            )
            for layer in spec.layers
        )

    @property
    def slots(self) -> int:
        return self.blocks * self.block_size

    @property
    def nbytes(self) -> int:
        return self.slots * self.spec.bytes_per_token
