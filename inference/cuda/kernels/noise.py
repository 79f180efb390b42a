"""Counter-based noise: the same hash of (key, token) as the CPU's sampler, bit by bit.

The hash is the finaliser of splitmix64 on 64-bit words.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exponentials(key, token):  # noqa: ANN201 - a tile
    """Float32 Exp(1) variates, all > 0, of a noise key (int64) and token ids."""
    word = key.to(tl.uint64, bitcast=True) + (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    word ^= word >> 31
    uniform = ((word >> 1) | 1).to(tl.float32) * 1.0842021724855044e-19  # 2⁻⁶³
    uniform = tl.minimum(uniform, 0.99999994)  # 1 - 2⁻²⁴
    # -log1p(-u) by its series where u is so small that 1 - u would round it away.
    series = uniform * (1.0 + uniform * (0.5 + uniform * (0.33333334 + uniform * 0.25)))
    return tl.where(uniform < 0.02, series, -tl.log(1.0 - uniform))
