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


def seed_key(seed: int) -> int:
    """Return what `noise_keys` takes for `seed`, as an int64."""
    return signed(mix(seed + GOLDEN))


def noise_keys(seed_keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the int64 keys [n] of n output positions (int64, from 0) under the seeds of `seed_keys` [n]."""
    return hashed(seed_keys + (positions + 1) * signed(GOLDEN))


def hashed(word: torch.Tensor) -> torch.Tensor:
    """Return the splitmix64 hash of each int64; `word` is overwritten with it."""
    shifted = torch.empty_like(word)
    for by, factor in ((30, signed(FIRST)), (27, signed(SECOND)), (31, None)):
        # Shift right logically; torch's own shift is arithmetic.
        torch.bitwise_right_shift(word, by, out=shifted)
        word.bitwise_xor_(shifted.bitwise_and_((1 << (64 - by)) - 1))
        if factor is not None:
            word.mul_(factor)
    return word


def uniforms(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return float32 variates in (0, 1] of `keys` [rows, 1] (int64) and `tokens` [rows or 1, n] (ids)."""
    word = hashed(keys + (tokens + 1) * signed(GOLDEN))
    return word.bitwise_right_shift_(1).bitwise_and_((1 << 63) - 1).bitwise_or_(1).to(torch.float32).mul_(2.0**-63)


def exponentials(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return float32 Exp(1) variates [rows, n], all > 0, of `keys` [rows, 1] (int64) and `tokens` [rows or 1, n] (ids).

    Small ones have full relative precision, since sampling takes the smallest.
    """
    return -torch.log1p(-uniforms(keys, tokens).clamp_(max=1 - 2.0**-24))
