"""The K/V tensors behind the block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer's number of K/V heads, and the widths of a key and a value, which differ in some models."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The shape of a causal model's K/V: its attention layers in order, and the dtype."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's K/V in all layers."""
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
        """Write the K/V of T tokens to `slots` [T]: `key` [T, kv_heads, key_dim], `value` likewise, or both flat."""
        tokens = slots.shape[0]
        self.keys.index_copy_(0, slots, key.reshape(tokens, self.keys.shape[1]))
        self.values.index_copy_(0, slots, value.reshape(tokens, self.values.shape[1]))


class KVCache:
    """The K/V tensors of every layer, for `blocks` blocks of `block_size` tokens.

    Block 0 is the null block: never written, so that the slots which pad a gather read as zeros.
    """

    def __init__(self, spec: KVSpec, blocks: int, block_size: int) -> None:
        self.spec = spec
        self.blocks = blocks
        self.block_size = block_size
        # The operating system allocates zeroed pages on first access: memory grows with use, up to `nbytes`.
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
        """How many tokens each layer's tensors hold, the null block included."""
        return self.blocks * self.block_size

    @property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return self.slots * self.spec.bytes_per_token
