"""What this machine's processor computes fast, and the number format that follows from it."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; where it doesn't, float32 is several times faster."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())  # noqa: SLF001 - torch has no public name


def compute_dtype(wanted: str, stored: torch.dtype) -> tuple[torch.dtype, str]:
    """Return the dtype to compute in and a text for operators.

    `wanted` other than "auto" is taken as it is. "auto" takes the checkpoint's, except where this processor would be
    slower with it than with float32 (bfloat16 without its instructions; float16, which no linear here is fast with).
    """
    if wanted != "auto":
        return DTYPES[wanted], f"{wanted} (as configured)"
    name = str(stored).removeprefix("torch.")
    if stored is torch.float32 or (stored is torch.bfloat16 and fast_bfloat16()):
        return stored, f"{name} (the checkpoint's)"
    return torch.float32, f"float32 (checkpoint {name}; this processor is faster in float32)"
