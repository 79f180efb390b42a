"""Rotary positions as complex numbers, for queries and keys whose dimensions are (real, imaginary) pairs.

In transformers' layout the two dimensions of a pair are half a head apart; the weights are permuted at load. Queries
and keys are permuted alike, so their products are unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# The angles of a position are fixed for these; with "dynamic" and "longrope" they depend on the longest sequence.
FIXED = ("linear", "llama3", "yarn")


def frequencies(config: Any) -> tuple[torch.Tensor, float, str | None]:
    """Return (inverse frequencies [head_dim / 2], factor on cosine and sine, why it isn't supported or None)."""
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    kind = parameters.get("rope_type", "default")
    nothing = torch.empty(0)
    if "rope_theta" not in parameters:
        return nothing, 1.0, "its rope parameters are not one set for all layers"
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return nothing, 1.0, "it rotations only a part of each head"
    if kind == "default":
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 1.0 / parameters["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim), 1.0, None
    if kind not in FIXED:
        return nothing, 1.0, f"rope type {kind} is not one of default, {', '.join(FIXED)}"
    inverse, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return inverse, float(scale), None


def half_split_to_pairs(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Permute the rows of a q or k projection, its bias or its norm so that pairs are adjacent."""
    rest = tensor.shape[1:]
    return tensor.view(-1, 2, head_dim // 2, *rest).transpose(1, 2).reshape(-1, *rest)


class Rotations:
    """The complex rotations of each position, computed once: in parts of CHUNK positions, so that a position's have
    the same bits whatever else is asked for.
    """

    CHUNK = 1024

    def __init__(self, inverse_frequencies: torch.Tensor, scale: float) -> None:
        self._inverse = inverse_frequencies
        self._scale = scale
        self._table = torch.empty(0, len(inverse_frequencies), dtype=torch.complex64)

    def reach(self, length: int) -> None:
        """Make positions 0 … length - 1 known."""
        while len(self._table) < length:
            positions = torch.arange(len(self._table), len(self._table) + self.CHUNK).float()
            angles = torch.outer(positions, self._inverse)
            part = torch.polar(torch.full_like(angles, self._scale), angles)
            self._table = torch.cat((self._table, part))

    def place(self, device: torch.device, length: int) -> None:
        """Keep positions 0 … length - 1 at least on `device`: if it isn't the CPU, `of` knows no others."""
        self.reach(length)
        self._table = self._table.to(device)

    def of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return complex64 [T, head_dim / 2] for `positions` [T]."""
        if self._table.device.type == "cpu":  # on another device this would wait for it
            self.reach(int(positions.max()) + 1)
        return self._table[positions]
