"""The choice of a model's device and dtype, by the dtypes that this processor computes fast in."""

from __future__ import annotations

import torch

from inference.errors import ModelRefusedError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def fast_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions; without them float32 is several times faster."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())  # noqa: SLF001 - torch has no public name


def compute_device(wanted: str) -> torch.device:
    """Return the device to compute on, "auto" a GPU where there is one; raise ModelRefusedError for a missing one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return torch.device("cpu")
    device = torch.device("cuda", 0) if wanted == "auto" else torch.device(wanted)
    if (device.index or 0) >= count:
        raise ModelRefusedError(f"there is no device {wanted}: this process sees {count} GPUs of CUDA")
    return torch.device("cuda", device.index or 0)


def compute_dtype(wanted: str, stored: torch.dtype, device: torch.device | None = None) -> tuple[torch.dtype, str]:
    """Return the dtype to compute in and a text for operators.

    "auto" is the checkpoint's (`stored`), except where float32 is faster on the processor (without a GPU as `device`):
    for float16, and for bfloat16 without its instructions. Any other `wanted` is used as it is.
    """
    if wanted != "auto":
        return DTYPES[wanted], f"{wanted} (as configured)"
    name = str(stored).removeprefix("torch.")
    on_gpu = device is not None and device.type == "cuda"
    if on_gpu or stored is torch.float32 or (stored is torch.bfloat16 and fast_bfloat16()):
        return stored, f"{name} (the checkpoint's)"
    return torch.float32, f"float32 (checkpoint {name}; this processor is faster in float32)"
