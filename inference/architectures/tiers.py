"""The choice of a model's operators, by what the machine offers and the deployment asks for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import SubprocessError

import torch

from inference.config import QUANTIZATIONS, TIERS
from inference.errors import ModelRefusedError
from inference.execution.c_operators import COperators
from inference.execution.linear import packs
from inference.execution.operators import CPU, Operators, TorchOperators
from inference.execution.packed_operators import PackedOperators
from inference.kernels.build import LEVEL_VARIABLE, BuildError, LevelError, best_level, is_built
from inference.kernels.library import Library, load

log = logging.getLogger(__name__)


def choose(
    dtype: torch.dtype,
    folder: Path,
    *,
    tier: str = "auto",
    quantization: str = "",
    device: torch.device = CPU,
    tell: Callable[[str], None] = lambda _: None,
) -> Operators:
    """Return the operators for a model in `dtype`; raise ModelRefusedError when what was asked for can't be had.

    `tier` is one of TIERS; "auto" takes the kernels in C, which are built in `folder` if need be, or on a GPU those in
    Triton, else torch's operators with the reason. `quantization` is one of QUANTIZATIONS and needs such kernels.
    `tell` is called with a line before they are built.
    """
    if tier not in TIERS or quantization not in QUANTIZATIONS:
        raise ModelRefusedError(
            f"tier {tier!r} is not one of {TIERS}, or quantization {quantization!r} of {QUANTIZATIONS}"
        )
    if device.type != "cpu":
        return _on_gpu(device, tier, quantization)
    if quantization == "fp8":
        raise ModelRefusedError("quantization fp8 needs a GPU: this model runs on the CPU")
    reason = f"tier {tier} was asked for"
    if tier in {"auto", "c"}:
        library, reason = _kernels(dtype, folder, tier, tell)
        if library is not None:
            return COperators(library, quantization)
        if tier == "c":
            raise ModelRefusedError(reason)
    if quantization:
        raise ModelRefusedError(f"quantization {quantization} needs the C kernels: {reason}")
    if tier == "reference":
        return TorchOperators()
    reason = reason if tier == "auto" else ""
    return PackedOperators(reason) if packs(dtype) else TorchOperators(reason=reason)


def check_kv_dtype(kv_dtype: str, operators: Operators) -> None:
    """Raise ModelRefusedError with the reason when these operators can't keep K/V in `kv_dtype` (`EngineConfig`)."""
    on_cpu = operators.device.type == "cpu"
    if kv_dtype == "fp8" and on_cpu:
        raise ModelRefusedError("kv_dtype fp8 needs a GPU: this model runs on the CPU, whose C kernels have int8")
    if kv_dtype == "int8" and not on_cpu:
        raise ModelRefusedError(
            f"kv_dtype int8 needs the C kernels: this model runs on {operators.device}, where eight bits are fp8"
        )
    if kv_dtype == "int8" and not isinstance(operators, COperators):
        raise ModelRefusedError(f"kv_dtype int8 needs the C kernels, and the tier is {operators.tier}")


def _on_gpu(device: torch.device, tier: str, quantization: str) -> Operators:
    if tier == "c":
        raise ModelRefusedError(f"tier c is for the CPU, and this model runs on {device}")
    reason = ""
    if tier == "auto":
        try:
            from inference.cuda.operators import TritonOperators  # torch comes without triton too

            return TritonOperators(device, quantization)
        except ValueError as error:
            raise ModelRefusedError(str(error)) from error
        except (ImportError, OSError, RuntimeError, SubprocessError) as error:  # its compiler is missing, or fails
            reason = f"no Triton kernels: {error}"
    if quantization:
        raise ModelRefusedError(f"quantization {quantization} needs the Triton kernels: {reason or f'tier is {tier}'}")
    return TorchOperators(reason=reason, device=device)


def _kernels(dtype: torch.dtype, folder: Path, tier: str, tell: Callable[[str], None]) -> tuple[Library | None, str]:
    """Return the kernels in C, or why they aren't taken; raise ModelRefusedError for a level that can't be had."""
    if reason := _without_c(dtype, tier):
        return None, reason
    try:
        if not is_built(folder):
            tell("compiling kernels, once")
        library = load(folder)
    except LevelError as error:
        raise ModelRefusedError(str(error)) from error
    except BuildError as error:
        log.warning("no C kernels: %s; so a model takes three to five times as long, until it is loaded again", error)
        return None, f"no C kernels: {error}"
    library.use_threads(torch.get_num_threads())
    return library, ""


def _without_c(dtype: torch.dtype, tier: str) -> str:
    """Return why the kernels in C aren't taken, or an empty text."""
    if dtype not in {torch.bfloat16, torch.float32}:
        return f"no C kernels for {str(dtype).removeprefix('torch.')}"
    if tier == "auto" and best_level() == "plain" and not os.environ.get(LEVEL_VARIABLE):
        return "no C kernels: they would be slow without AVX2"
    return ""
