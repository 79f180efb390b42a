"""Counter-based noise: a pure function of (seed, output position, token id), without a generator's state.

The hash is the finaliser of splitmix64 on two's-complement 64-bit integers, the same on every device.
"""

from __future__ import annotations

import torch

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def signed(word: int) -> int:
    """Return the unsigned 64-bit word as the int64 with the same bits."""
    word &= MASK
    return word - (1 << 64) if word >> 63 else word


def mix(word: int) -> int:
    """Return the splitmix64 hash of an unsigned 64-bit word."""
    word &= MASK
    word = ((word ^ (word >> 30)) * FIRST) & MASK
    word = ((word ^ (word >> 27)) * SECOND) & MASK
    return word ^ (word >> 31)


def noise_key(seed: int, position: int) -> int:
    """Return the key of output `position` (from 0) under `seed`, as an int64."""
    return signed(mix(mix(seed + GOLDEN) + (position + 1) * GOLDEN))


def exponentials(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return float32 Exp(1) variates [rows, n], all > 0, of `keys` [rows, 1] (int64) and `tokens` [rows or 1, n] (ids).

    Small ones have full relative precision, since sampling takes the smallest.
    """
    word = keys + (tokens + 1) * signed(GOLDEN)
    word = (word ^ _shift(word, 30)) * signed(FIRST)
    word = (word ^ _shift(word, 27)) * signed(SECOND)
    word ^= _shift(word, 31)
    uniform = (_shift(word, 1) | 1).to(torch.float32) * 2.0**-63
    return -torch.log1p(-uniform.clamp_(max=1 - 2.0**-24))


def _shift(word: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right logically; torch's own shift is arithmetic."""
    return (word >> by) & ((1 << (64 - by)) - 1)
