"""The K/V tensors behind the block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.kernels import pages

SCALE = torch.float32  # of keys and values in eight bits


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer's number of K/V heads, and the widths of a key and a value, which differ in some models."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The shape of a causal model's K/V: its attention layers in order, and the dtype.

    In int8 each key and value of a token and head is bytes times a scale.
    """

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype

    @property
    def has_scales(self) -> bool:
        """Whether there are scales beside keys and values."""
        return self.dtype is torch.int8

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's K/V in all layers, with their scales."""
        width = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in self.layers)
        scales = sum(2 * layer.kv_heads for layer in self.layers) if self.has_scales else 0
        return width * self.dtype.itemsize + scales * SCALE.itemsize


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer: `keys` [blocks, kv_heads, block_size, key_dim] and `values` [blocks, kv_heads, block_size, value_dim].

    One head's keys of a block are contiguous, so that a kernel reads them in one run. A token's place is block ·
    block_size + offset. `scales` are those of keys and of values in int8, [blocks, kv_heads, block_size] each; else
    there are none.
    """

    keys: torch.Tensor
    values: torch.Tensor
    shape: LayerShape
    scales: tuple[torch.Tensor, torch.Tensor] | None = None


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
                self._scales(layer),
            )
            for layer in spec.layers
        )

    @property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return self.blocks * self.block_size * self.spec.bytes_per_token

    def _scales(self, layer: LayerShape) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self.spec.has_scales:
            return None
        shape = (self.blocks, layer.kv_heads, self.block_size)
        return _zeros(shape, SCALE, self.device), _zeros(shape, SCALE, self.device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of zeros; on the host its memory is taken page by page as it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return pages.zeros(shape, dtype)
