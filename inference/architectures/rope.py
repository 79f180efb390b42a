"""Rotary positions as complex numbers, for queries and keys whose dimensions are (real, imaginary) pairs.

In transformers' layout the two dimensions of a pair are half a head apart; the weights are permuted at load. Queries
and keys are permuted alike, so their products are unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# The angles of a position are fixed for these; with "dynamic" they depend on the longest sequence.
FIXED = ("linear", "llama3", "yarn")


class UnknownRopeError(Exception):
    """Rotary positions that aren't computed here; the message is the reason."""


def original_length(config: Any) -> int:
    """Return the length up to which longrope has its short factors, 0 where the config has another kind of rope."""
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    return int(parameters["original_max_position_embeddings"]) if parameters.get("rope_type") == "longrope" else 0


def set_original_length(config: Any, length: int) -> None:
    """Set the length that `original_length` returns, wherever a config with longrope has it."""
    config.rope_parameters["original_max_position_embeddings"] = length
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = length


def frequencies(
    config: Any, kind: str | None = None, *, is_partial: bool = False, is_long: bool = False
) -> tuple[torch.Tensor, float]:
    """Return (inverse frequencies [rotated part of a head / 2], factor on cosine and sine); raise UnknownRopeError.

    `kind` names the layers that are asked for where they have sets of parameters of their own. With `is_partial` the
    config may rotate only the first part of each head. Longrope has the factors of short sequences, with `is_long`
    those of long ones.
    """
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    if kind is not None:
        parameters = dict(parameters.get(kind) or {})
    type_ = parameters.get("rope_type", "default")
    if "rope_theta" not in parameters:
        raise UnknownRopeError("its rope parameters are neither one set for all layers nor one for each kind")
    part = parameters.get("partial_rotary_factor", 1.0)
    if part != 1.0 and not is_partial:
        raise UnknownRopeError("it rotates only a part of each head")
    if type_ == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dim = int(head_dim * part)
        return 1.0 / parameters["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim), 1.0
    if type_ == "longrope" and kind is None:
        length = parameters["original_max_position_embeddings"] + 1 if is_long else None
        inverse, scale = ROPE_INIT_FUNCTIONS[type_](config, torch.device("cpu"), seq_len=length)
        return inverse, float(scale)
    if type_ not in FIXED:
        raise UnknownRopeError(f"rope type {type_} is not one of default, {', '.join(FIXED)}, longrope")
    inverse, scale = ROPE_INIT_FUNCTIONS[type_](config, torch.device("cpu"), layer_type=kind)
    return inverse, float(scale)


def half_split_to_pairs(tensor: torch.Tensor, head_dim: int, rotated: int = 0) -> torch.Tensor:
    """Permute the rows of a q or k projection, its bias or its norm so that pairs are adjacent.

    Of each head the first `rotated` rows are permuted (default: all), the others stay.
    """
    rest = tensor.shape[1:]
    rotated = rotated or head_dim
    heads = tensor.view(-1, head_dim, *rest)
    pairs = heads[:, :rotated].reshape(len(heads), 2, rotated // 2, *rest).transpose(1, 2)
    return torch.cat((pairs.reshape(len(heads), rotated, *rest), heads[:, rotated:]), 1).reshape(-1, *rest)


class Rotations:
    """The complex rotations of each position, computed once: in parts of CHUNK positions, so that a position's have
    the same bits whatever else is asked for.
    """

    CHUNK = 1024

    def __init__(self, inverse_frequencies: torch.Tensor, scale: float, head_dim: int) -> None:
        """Of a head of `head_dim`, pairs beyond those of `inverse_frequencies` are neither turned nor scaled."""
        self._inverse = inverse_frequencies
        self._scale = scale
        self._still = head_dim // 2 - len(inverse_frequencies)
        self._table = torch.empty(0, head_dim // 2, dtype=torch.complex64)

    def reach(self, length: int) -> None:
        """Make positions 0 … length - 1 known."""
        while len(self._table) < length:
            positions = torch.arange(len(self._table), len(self._table) + self.CHUNK).float()
            angles = torch.outer(positions, self._inverse)
            turned = torch.polar(torch.full_like(angles, self._scale), angles)
            still = torch.ones(self.CHUNK, self._still, dtype=turned.dtype)
            self._table = torch.cat((self._table, torch.cat((turned, still), 1)))

    def place(self, device: torch.device, length: int) -> None:
        """Keep positions 0 … length - 1 at least on `device`: if it isn't the CPU, `of` knows no others."""
        self.reach(length)
        self._table = self._table.to(device)

    def of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return complex64 [T, head_dim / 2] for `positions` [T]."""
        if self._table.device.type == "cpu":  # on another device this would wait for it
            self.reach(int(positions.max()) + 1)
        return self._table[positions]
