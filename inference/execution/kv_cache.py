"""The K/V tensors behind the block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.kernels.cpu import pages


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
    """One layer: `keys` [blocks, kv_heads, block_size, key_dim] and `values` [blocks, kv_heads, block_size, value_dim].

    One head's keys of a block are contiguous, so that a kernel reads them in one run. A token's place is block ·
    block_size + offset.
    """

    keys: torch.Tensor
    values: torch.Tensor
    shape: LayerShape


class KVCache:
    """The K/V tensors of every layer on `device`, for `blocks` blocks of `block_size` tokens.

    Block 0 is the null block: never written, so that what pads a gather reads as zeros.
    """

    def __init__(self, spec: KVSpec, blocks: int, block_size: int, device: torch.device | str = "cpu") -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.blocks = blocks
        self.block_size = block_size
        self.layers = tuple(
            LayerCache(
                _zeros((blocks, layer.kv_heads, block_size, layer.key_dim), spec.dtype, self.device),
                _zeros((blocks, layer.kv_heads, block_size, layer.value_dim), spec.dtype, self.device),
                layer,
            )
            for layer in spec.layers
        )

    @property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return self.blocks * self.block_size * self.spec.bytes_per_token


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of zeros; on the host its memory is taken page by page as it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return pages.zeros(shape, dtype)
