"""Products of adapters for a linear layer, for the tokens of all of them together: (x · downᵀ) · upᵀ in two launches.

A tile is some neighbouring tokens of one adapter. Adapters may have other ranks than their neighbours, and none at all
of a layer: each program reads from its tile's adapter what there is to compute. Tokens that no tile has are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl

from inference.cuda.kernels.matvec import compute_type

FEW = 512
"""Tokens of a step up to which its launches depend on their number alone, so that they can be captured."""
TILE = tl.constexpr(3)  # numbers: the address of the adapter's table (0: an empty tile), the first token, how many
HEAD = tl.constexpr(3)  # of a pair: the address of `down`, its ranks, the number of modules
EACH = tl.constexpr(5)  # of a module: its first rank, ranks, where its outputs begin, how many, the address of `up`
SHORT, TALL = 16, 64  # tokens of a tile
RANKS = 16  # ranks of a block
COLUMNS = 128
ALIGNED = 16  # numbers
PIECES = 8  # of the inputs, for few tokens: programs that add up a piece each
ACROSS = 3  # programs that share the ranks of a tile
Part = tuple[int, torch.Tensor, torch.Tensor]
"""A module of a layer: where its outputs begin, `down` [rank, inputs] and `up` [outputs, rank]."""


@triton.jit(do_not_specialize=["place", "tokens"])
def _shrink(
    tiles,
    place,
    x,
    hidden,
    tokens,
    K,
    x_stride,
    stride,
    COMPUTE: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tiles + tl.program_id(0) * TILE
    adapter = tl.load(tile)
    if adapter != 0:
        pair = tl.load(adapter.to(tl.pointer_type(tl.int64)) + place)
        if pair != 0:
            about = pair.to(tl.pointer_type(tl.int64))
            down = tl.multiple_of(tl.load(about).to(tl.pointer_type(x.dtype.element_ty)), 16)
            ranks = tl.load(about + 1).to(tl.int32)
            m = tl.arange(0, BLOCK_M)
            real = m < tl.load(tile + 2)
            row = tl.load(tile + 1) + tl.where(real, m, 0)
            piece = tl.program_id(2)
            each = tl.cdiv(tl.cdiv(K, BLOCK_K), PIECES) * BLOCK_K
            k = tl.arange(0, BLOCK_K)
            for block in range(tl.program_id(1), tl.cdiv(ranks, BLOCK_R), tl.num_programs(1)):
                r = block * BLOCK_R + tl.arange(0, BLOCK_R)
                acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
                for start in range(piece * each, tl.minimum(K, (piece + 1) * each), BLOCK_K):
                    column = start + k
                    a = tl.load(
                        x + row[:, None] * x_stride + column[None, :],
                        mask=real[:, None] & (column < K)[None, :],
                        other=0.0,
                    )
                    b = tl.load(
                        down + r.to(tl.int64)[None, :] * K + column[:, None],
                        mask=(r < ranks)[None, :] & (column < K)[:, None],
                        other=0.0,
                    )
                    acc = tl.dot(a.to(COMPUTE), b.to(COMPUTE), acc, input_precision="ieee")
                at = hidden + (piece * tokens + row[:, None]) * stride + r[None, :]
                tl.store(at, acc, mask=real[:, None] & (r < ranks)[None, :])


@triton.jit(do_not_specialize=["place", "tokens"])
def _expand(
    tiles,
    place,
    hidden,
    out,
    tokens,
    stride,
    out_stride,
    COMPUTE: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    dtype: tl.constexpr = out.dtype.element_ty
    tile = tiles + tl.program_id(0) * TILE
    adapter = tl.load(tile)
    if adapter != 0:
        pair = tl.load(adapter.to(tl.pointer_type(tl.int64)) + place)
        if pair != 0:
            about = pair.to(tl.pointer_type(tl.int64))
            m = tl.arange(0, BLOCK_M)
            real = m < tl.load(tile + 2)
            row = tl.load(tile + 1) + tl.where(real, m, 0)
            first_column = tl.program_id(1) * BLOCK_N
            parts = tl.load(about + 2).to(tl.int32)
            for part in range(parts):
                of = about + HEAD + part * EACH
                first = tl.load(of).to(tl.int32)
                rank = tl.load(of + 1).to(tl.int32)
                begin = tl.load(of + 2).to(tl.int32)
                outputs = tl.load(of + 3).to(tl.int32)
                up = tl.multiple_of(tl.load(of + 4).to(tl.pointer_type(dtype)), 16)
                if (begin < first_column + BLOCK_N) & (begin + outputs > first_column):
                    n = first_column - begin + tl.arange(0, BLOCK_N)
                    inside = (n >= 0) & (n < outputs)
                    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
                    for start in range(0, rank, BLOCK_R):
                        r = start + tl.arange(0, BLOCK_R)
                        at = hidden + row[:, None] * stride + (first + r)[None, :]
                        known = real[:, None] & (r < rank)[None, :]
                        h = tl.load(at, mask=known, other=0.0)
                        for piece in range(1, PIECES):
                            h += tl.load(at + piece * tokens * stride, mask=known, other=0.0)
                        b = tl.load(
                            up + r.to(tl.int64)[:, None] * outputs + n[None, :],
                            mask=(r < rank)[:, None] & inside[None, :],
                            other=0.0,
                        )
                        # Between both products the numbers have the model's precision, as in every tier.
                        acc = tl.dot(h.to(dtype).to(COMPUTE), b.to(COMPUTE), acc, input_precision="ieee")
                    at_out = out + row[:, None] * out_stride + (begin + n)[None, :]
                    mask = real[:, None] & inside[None, :]
                    acc += tl.load(at_out, mask=mask, other=0.0).to(tl.float32)
                    tl.store(at_out, acc.to(dtype), mask=mask)


class PackedAdapter:
    """An adapter's pairs in one piece of the device's memory, and where each place's begin."""

    def __init__(self, device: torch.device, places: int, layers: Mapping[int, Sequence[Part]]) -> None:
        """`layers` has the modules that it changes of each layer, by its place below `places`; all have one dtype."""
        pieces = [piece for parts in layers.values() for piece in _pieces(parts)]
        numbers = torch.zeros(sum(_rounded(len(piece)) for piece in pieces), dtype=pieces[0].dtype)
        starts: list[int] = []
        used = 0
        for piece in pieces:
            numbers[used : used + len(piece)] = piece
            starts.append(used)
            used += _rounded(len(piece))
        self._numbers = numbers.to(device)
        self.most_ranks = max(sum(len(down) for _, down, _ in parts) for parts in layers.values())
        at = iter(self._numbers.data_ptr() + start * numbers.itemsize for start in starts)
        table, pairs = [0] * places, dict.fromkeys(layers, 0)
        for place, parts in layers.items():
            pairs[place] = len(table)
            table += [next(at), sum(len(down) for _, down, _ in parts), len(parts)]
            first = 0
            for begin, down, up in parts:
                table += [first, len(down), begin, len(up), next(at)]
                first += len(down)
        self._table = torch.zeros(len(table), dtype=torch.long, device=device)
        self.address = self._table.data_ptr()
        for place, entry in pairs.items():
            table[place] = self.address + 8 * entry
        self._table.copy_(torch.tensor(table))
        self.nbytes = self._numbers.nbytes + self._table.nbytes


class LowRankStep:
    """The adapters of a step's tokens, on the device; of few tokens in memory that stays where it is."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._few = torch.zeros(FEW, TILE.value, dtype=torch.long, device=device)
        self._tiles = self._few
        self._count = 0
        self._most_ranks = 0

    def tell(self, spans: Sequence[tuple[PackedAdapter, int, int]], tokens: int) -> None:
        """Let the tokens from the first to the end of each span have its adapter, in a step of `tokens` tokens."""
        is_few = tokens <= FEW
        rows = SHORT if is_few else TALL
        tiles = [
            (adapter.address, at, min(rows, end - at))
            for adapter, begin, end in spans
            for at in range(begin, end, rows)
        ]
        self._count = tokens if is_few else len(tiles)
        tiles += [(0, 0, 0)] * (self._count - len(tiles))
        self._most_ranks = max((adapter.most_ranks for adapter, _, _ in spans), default=0)
        table = torch.tensor(tiles, dtype=torch.long).view(-1, TILE.value)
        if self._device.type == "cuda":
            table = table.pin_memory()
        if is_few:
            self._tiles = self._few
            self._few[: len(table)].copy_(table, non_blocking=True)
        else:
            self._tiles = table.to(self._device, non_blocking=True)

    def add(self, place: int, x: torch.Tensor, out: torch.Tensor, most_ranks: int) -> None:
        """Add to `out` [tokens, outputs] what these adapters give for `x` [tokens, inputs] at layer `place`.

        Both have contiguous rows. No adapter has more than `most_ranks` ranks of that layer's modules together.
        """
        (tokens, inputs), outputs = x.shape, out.shape[1]
        if not self._count:
            return
        is_few = tokens <= FEW
        stride = most_ranks if is_few else self._most_ranks
        pieces = PIECES if is_few else 1
        rows = SHORT if is_few else TALL
        hidden = torch.empty(pieces, tokens, stride, dtype=torch.float32, device=x.device)
        # Triton's interpreter multiplies no bfloat16.
        compute = tl.float32 if x.device.type == "cpu" else compute_type(x, x)
        _shrink[(self._count, ACROSS, pieces)](
            self._tiles,
            place,
            x,
            hidden,
            tokens,
            inputs,
            x.stride(0),
            stride,
            COMPUTE=compute,
            PIECES=pieces,
            BLOCK_M=rows,
            BLOCK_R=RANKS,
            BLOCK_K=64 if x.itemsize == 4 else 128,
            num_warps=4,
        )
        _expand[(self._count, triton.cdiv(outputs, COLUMNS))](
            self._tiles,
            place,
            hidden,
            out,
            tokens,
            stride,
            out.stride(0),
            COMPUTE=compute,
            PIECES=pieces,
            BLOCK_M=rows,
            BLOCK_R=RANKS,
            BLOCK_N=COLUMNS,
            num_warps=4,
        )


def _pieces(parts: Sequence[Part]) -> list[torch.Tensor]:
    """Return the numbers of a layer in the order in which they are kept: all `down`, then each `up` by its ranks."""
    downs = torch.cat([down for _, down, _ in parts]).flatten()
    return [downs, *(up.t().flatten() for _, _, up in parts)]


def _rounded(numbers: int) -> int:
    return -(-numbers // ALIGNED) * ALIGNED
