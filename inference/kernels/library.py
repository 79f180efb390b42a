"""The built library, loaded into this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch  # before the library: they share the OpenMP runtime that torch has loaded

from inference.kernels.build import (
    BuildError,
    CompilerRefusedError,
    best_level,
    build,
    levels_below,
    tiles_are_permitted,
    wanted_level,
)

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "run_program": (ctypes.c_int, [_P, _I]),
    "use_threads": (None, [ctypes.c_int]),
    "pack_fp32": (None, [_P, _P, _I, _I]),
    "pack_bf16": (None, [_P, _P, _I, _I]),
    "pack_w8a8": (None, [_P, _P, _P, _P, _P, _I, _I]),
    "pack_w4": (None, [_P, _P, _P, _I, _I]),
    "linear_fp32": (ctypes.c_int, [_P, _P, _P, _P, _P, _I, _I, _I]),
    "linear_bf16": (ctypes.c_int, [_P, _P, _P, _P, _P, _I, _I, _I]),
    "linear_w8a8": (ctypes.c_int, [_I, _P, _P, _P, _P, _P, _P, _P, _I, _I, _I]),
    "linear_w4": (ctypes.c_int, [_I, _P, _P, _P, _P, _P, _P, _I, _I, _I]),
    "low_rank": (ctypes.c_int, [_I, _P, _I, _P, _P, _I, _I, _I]),
    "attend": (ctypes.c_int, [_I, *[_P] * 11, *[_I] * 8, _F, _F]),
    "rope_store": (None, [_I, *[_P] * 10, *[_I] * 6, _F]),
    "store": (None, [_I, *[_P] * 7, *[_I] * 5]),
    "rms_norm": (None, [_I, _P, _P, _P, _P, _I, _I, _F]),
    "gated": (None, [_I, _I, _P, _P, _I, _I]),
    "softcap": (None, [_I, _P, _P, _I, _I, _F]),
    "route": (None, [_I, _P, _P, _P, *[_I] * 5]),
    "combine": (None, [_I, *[_P] * 5, *[_I] * 3]),
    "argmax": (None, [_I, _P, _I, _I, _P, _P]),
    "gumbel_argmax": (None, [_I, _P, _I, _I, _P, _P, _P, _P]),
    "filtered_argmax": (ctypes.c_int, [_I, _P, _I, _I, *[_P] * 7]),
    "rule_out": (None, [_I, _P, _I, _I, _P, _P, _I]),
    "log_sum_exp": (None, [_I, _P, _I, _I, _P, _P, _P]),
    "count_above": (None, [_I, _P, _I, _I, _P, _P]),
    "top_candidates": (ctypes.c_int, [_I, _P, _I, _I, _I, _P, _P]),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel: its arguments, of which those at `pointers` are addresses, those at `floats` numbers in
    floating point. `step` is the address of what repeats it from words (program.h), None where it has none.
    """

    step: int | None
    arguments: tuple[Any, ...]
    pointers: frozenset[int]
    floats: frozenset[int]


class _Current(threading.local):
    calls: list[Call] | None = None


class Library:
    """The functions of one built file, by their names in C; `level` is what it was compiled for.

    Kernels run on as many threads as torch had when the library was loaded, or as `use_threads` says.
    """

    columns: int  # outputs of one packed panel

    def __init__(self, file: Path, level: str) -> None:
        """Load `file`; raise BuildError with the reason when it can't be."""
        if level == "avx512-amx" and not tiles_are_permitted():
            raise BuildError("the system doesn't let this process use tiles (AMX)")
        self.level = level
        self.columns = 64 if level.startswith("avx512") else 32
        self._current = _Current()
        try:
            loaded = ctypes.CDLL(str(file))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, self._recorded(function, getattr(loaded, f"step_{name}", None)))
        except (OSError, AttributeError) as error:
            raise BuildError(f"the built kernels can't be loaded: {error}") from error
        self.use_threads(torch.get_num_threads())

    @contextmanager
    def record(self) -> Iterator[list[Call]]:
        """Add every call of a kernel by this thread to the list that is returned."""
        made: list[Call] = []
        self._current.calls = made
        try:
            yield made
        finally:
            self._current.calls = None

    def _recorded(self, function: Any, step: Any) -> Callable[..., Any]:
        """Return `function`, which adds itself to a recording."""
        current = self._current
        address = None if step is None else ctypes.cast(step, _P).value
        kinds = list(enumerate(function.argtypes))
        pointers = frozenset(at for at, kind in kinds if kind is _P)
        floats = frozenset(at for at, kind in kinds if kind is _F)

        def call(*arguments: Any) -> Any:
            if current.calls is not None:
                current.calls.append(Call(address, arguments, pointers, floats))
            return function(*arguments)

        return call

    def __getattr__(self, name: str) -> Any:  # for the type checker; the functions are attributes of the instance
        raise AttributeError(name)


@cache
def load(folder: Path, level: str = "") -> Library:
    """Return the library for `level` (default: what the environment asks for, or this processor's best), built in
    `folder` if need be.

    A compiler that doesn't know the best level builds the best that it knows. Raise BuildError with the reason when
    there can't be a library; the next call tries again.
    """
    if level := level or wanted_level():
        return _built(folder, level)
    level = best_level()
    try:
        return _built(folder, level)
    except CompilerRefusedError as error:
        for lower in levels_below(level):
            with suppress(CompilerRefusedError):
                return _built(folder, lower)
        raise error from None


def _built(folder: Path, level: str) -> Library:
    file = build(folder, level)
    try:
        return Library(file, level)
    except BuildError:  # built elsewhere, perhaps: the folder may come from another machine
        return Library(build(folder, level, anew=True), level)


def element(tensor: torch.Tensor) -> int:
    """Return 1 for bfloat16 and 0 for float32, as the kernels are told; raise TypeError for another dtype."""
    if tensor.dtype is torch.bfloat16:
        return 1
    if tensor.dtype is torch.float32:
        return 0
    raise TypeError(f"the kernels compute in bfloat16 and float32, not in {tensor.dtype}")


def require(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> int:
    """Return the address of `tensor`; raise TypeError or ValueError unless it is contiguous in this shape and dtype."""
    if tensor.dtype is not dtype:
        raise TypeError(f"{name} has to be {dtype}, not {tensor.dtype}")
    if tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(f"{name} has to be contiguous {list(shape)}, not {list(tensor.shape)}")
    return tensor.data_ptr()
