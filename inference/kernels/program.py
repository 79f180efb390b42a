"""Programs: the kernel calls of a computation, recorded once and then repeated in one call.

Between two kernels Python takes as long as a small kernel does, and longer when weights have just gone through the
caches; and the kernels' threads, which wait a moment for the next one, don't fall asleep inside a program.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inference.kernels.library import Call, Library

MOST = 256  # keys that are known of one computation, the newest ones
ALIGNMENT = 64

Compute = Callable[..., torch.Tensor]

_aten = torch.ops.aten
_NEW = {_aten.empty.memory_format, _aten.new_empty.default, _aten.empty_like.default}
_VIEWS = {
    _aten.view.default,
    _aten.detach.default,
    _aten.narrow.default,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.split_with_sizes.default,
}


@dataclass(slots=True)
class _Piece:
    """Memory of a tensor, at `start` while it was recorded: used from call `first` to call `last`, then at `offset`."""

    start: int
    size: int
    first: int
    last: int
    offset: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor, first: int) -> _Piece:
        return cls(tensor.data_ptr(), tensor.numel() * tensor.element_size(), first, first)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the pieces that are made between the `calls`, and notices every torch operator that computes something."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[_Piece] = []
        self.computes = False
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _NEW:
            self.made.append(_Piece.of(result, len(self._calls)))
        elif func not in _VIEWS:
            self.computes = True
        return result


class Programs:
    """The programs of one computation on `library`, which consists of kernels alone, or else is never recorded.

    They share one piece of memory for what is between the kernels: a result is valid until the next run.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[Hashable, _Program | None] = {}  # None: seen once
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.refused = False

    def run(self, key: Hashable, compute: Compute, *inputs: torch.Tensor) -> torch.Tensor:
        """Return what `compute(*inputs)` returns.

        `key` stands for everything else that decides which kernels are called with which arguments: for addresses of
        tensors that aren't inputs, and for shapes. Recorded when a key comes for the second time.
        """
        if self.refused:
            return compute(*inputs)
        if key not in self._known:
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            self._known[key] = None
            return compute(*inputs)
        program = self._known[key] = self._known.pop(key)  # the newest
        if program is not None:
            return program.run(self._library, self._memory, inputs)
        with self._library.record() as calls, _Watch(calls) as watch:
            result = compute(*inputs)
        if watch.computes or any(call.step is None for call in calls):
            self.refused = True
            self._known.clear()
            return result
        program = self._known[key] = _Program(calls, inputs, watch.made, result)
        if program.bytes > len(self._memory):
            self._memory = torch.empty(program.bytes, dtype=torch.uint8)
        return result


class _Program:
    """Calls with the places of their tensors in a memory of `bytes` bytes: a place is free again after its last use."""

    def __init__(
        self, calls: list[Call], inputs: tuple[torch.Tensor, ...], made: list[_Piece], result: torch.Tensor
    ) -> None:
        given = [_Piece.of(tensor, -1) for tensor in inputs]
        pieces = _Pieces()
        for piece in given:
            pieces.add(piece)
        waiting = deque(piece for piece in made if piece.size)
        words: list[int] = []  # as `run_program` reads them
        moved: list[tuple[int, _Piece]] = []
        for number, call in enumerate(calls):
            while waiting and waiting[0].first <= number:
                pieces.add(waiting.popleft())
            words += (call.step or 0, len(call.arguments))
            for at, value in enumerate(call.arguments):
                used = pieces.at(value) if at in call.pointers and value else None
                if used is not None:
                    used.last = number
                    moved.append((len(words), used))
                    words.append(value - used.start)
                else:
                    words.append(_bits(value) if at in call.floats else int(value or 0))
        last = pieces.at(result.data_ptr())
        if last is None:
            raise ValueError("the result of a program comes from one of its kernels, or is an input")
        last.last = len(calls)
        self.bytes = place({id(piece): piece for piece in (*given, *(piece for _, piece in moved), last)}.values())
        for at, piece in moved:
            words[at] += piece.offset
        self._words = np.array(words, np.int64)
        self._address = self._words.ctypes.data
        self._moved = np.array([at for at, _ in moved], np.int64)
        self._calls = len(calls)
        self._base = 0
        self._inputs = [_view(tensor, piece) for tensor, piece in zip(inputs, given, strict=True)]
        self._result = _view(result, last)

    def run(self, library: Library, memory: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Repeat the calls on `inputs`, in `memory`, and return the result, a part of it."""
        base = memory.data_ptr()
        if base != self._base:
            self._words[self._moved] += base - self._base
            self._base = base
            self._taken = [view(memory) for view in self._inputs]
            self._given = self._result(memory)
        for own, tensor in zip(self._taken, inputs, strict=True):
            own.copy_(tensor)
        if library.run_program(self._address, self._calls):
            raise MemoryError("not enough memory for a kernel")
        return self._given


class _Pieces:
    """The pieces that were made last where they are: a later one takes the memory of those that are gone."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []  # by start

    def add(self, piece: _Piece) -> None:
        end = piece.start + piece.size
        begin = bisect_right(self._pieces, piece.start, key=lambda each: each.start + each.size)
        behind = bisect_left(self._pieces, end, key=lambda each: each.start)
        self._pieces[begin:behind] = [piece]

    def at(self, address: int) -> _Piece | None:
        number = bisect_right(self._pieces, address, key=lambda each: each.start) - 1
        piece = self._pieces[number] if number >= 0 else None
        return piece if piece is not None and address < piece.start + piece.size else None


def place(pieces: Iterable[_Piece]) -> int:
    """Give each piece an offset where no other lies that is used while it is, the lowest; return the size of all."""
    living: list[_Piece] = []
    most = 0
    for piece in sorted(pieces, key=lambda each: each.first):
        living = sorted((each for each in living if each.last >= piece.first), key=lambda each: each.offset)
        for each in living:
            if each.offset - piece.offset >= piece.size:
                break
            piece.offset = max(piece.offset, -(-(each.offset + each.size) // ALIGNMENT) * ALIGNMENT)
        living.append(piece)
        most = max(most, piece.offset + piece.size)
    return most


def _view(tensor: torch.Tensor, piece: _Piece) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what gives the place in a memory of `tensor`, which is in `piece`."""
    begin = piece.offset + tensor.data_ptr() - piece.start
    end, dtype, shape = begin + tensor.numel() * tensor.element_size(), tensor.dtype, tensor.shape
    return lambda memory: memory[begin:end].view(dtype).view(shape)


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
