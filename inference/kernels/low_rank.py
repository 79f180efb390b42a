"""Products of a step's adapters, added to a linear layer's outputs for all of its tokens in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from inference.kernels.library import Library, element, require
from inference.kernels.pages import zeros

DEEP = 4  # ranks of a tile
VECTOR = 16  # words of 32 bits
Part = tuple[int, torch.Tensor, torch.Tensor]
"""A module of a layer: where its outputs begin, `down` [rank, inputs] and `up` [outputs, rank]."""


class PackedAdapter:
    """An adapter's pairs, packed in one piece of memory; all are bfloat16 or all float32."""

    def __init__(self, library: Library, places: int, layers: Mapping[int, Sequence[Part]]) -> None:
        """`layers` has the modules that it changes of each layer, by its place below `places`."""
        tables: list[list[int]] = []
        self._memory = zeros((sum(_words(library, parts) for parts in layers.values()),), torch.int32)
        base, used = self._memory.data_ptr(), 0
        for parts in layers.values():
            each = 2 if element(parts[0][1]) else 1
            inputs = parts[0][1].shape[1]
            pitch = _rounded(-(-inputs // each), VECTOR)
            ranks = [_rounded(len(down), each) for _, down, _ in parts]
            table = [base + used * 4, sum(ranks) // each, len(parts)]
            rows = self._memory[used : used + _rounded(sum(ranks), DEEP) * pitch].view(parts[0][1].dtype)
            rows = rows.view(-1, pitch * each)
            used += rows.numel() // each
            first = 0
            for (begin, down, up), rank in zip(parts, ranks, strict=True):
                rows[first : first + len(down), :inputs] = down
                outputs, words = len(up), rank // each
                padded = torch.nn.functional.pad(up, (0, rank - up.shape[1])).contiguous()
                pack = library.pack_bf16 if element(up) else library.pack_fp32
                pack(padded.data_ptr(), base + used * 4, outputs, rank)
                table += [first // each, words, begin, outputs, base + used * 4]
                used += _rounded(outputs, library.columns) * words
                first += rank
            tables.append(table)
        self._tables = torch.tensor([number for table in tables for number in table], dtype=torch.int64)
        self._places = torch.zeros(places, dtype=torch.int64)
        at = self._tables.data_ptr()
        for place, table in zip(layers, tables, strict=True):
            self._places[place] = at
            at += 8 * len(table)
        self.address = self._places.data_ptr()
        self.nbytes = self._memory.nbytes + self._tables.nbytes + self._places.nbytes


class LowRankStep:
    """The adapters of a step's tokens, in a table that is kept from step to step and moves only to grow."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._table = torch.zeros(1 + 3 * 64, dtype=torch.int64)

    def tell(self, spans: Sequence[tuple[PackedAdapter, int, int]]) -> int:
        """Let the tokens from the first to the end of each span have its adapter; return the table's address."""
        words = [len(spans), *(word for adapter, begin, end in spans for word in (adapter.address, begin, end))]
        if len(words) > len(self._table):
            self._table = torch.zeros(2 * len(words), dtype=torch.int64)
        self._table[: len(words)] = torch.tensor(words)
        return self._table.data_ptr()

    def add(self, place: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to `out` [tokens, outputs] what these adapters give for `x` [tokens, inputs] at layer `place`."""
        (tokens, inputs), outputs = x.shape, out.shape[1]
        if self._library.low_rank(
            element(x),
            self._table.data_ptr(),
            place,
            require(x, (tokens, inputs), x.dtype, "x"),
            require(out, (tokens, outputs), x.dtype, "out"),
            tokens,
            outputs,
            inputs,
        ):
            raise MemoryError("not enough memory for the products of adapters")


def _words(library: Library, parts: Sequence[Part]) -> int:
    """How many words of 32 bits a layer's pairs take."""
    each = 2 if element(parts[0][1]) else 1
    ranks = [_rounded(len(down), each) for _, down, _ in parts]
    down = _rounded(sum(ranks), DEEP) * _rounded(-(-parts[0][1].shape[1] // each), VECTOR)
    return down + sum(
        _rounded(len(up), library.columns) * rank // each for (_, _, up), rank in zip(parts, ranks, strict=True)
    )


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
