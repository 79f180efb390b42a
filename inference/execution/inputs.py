"""The tensors of one forward pass, made from planned rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.core.step import Row
from inference.execution.attention.paged import AttentionMeta, Chunk, DecodeGroup

# Decode rows share one padded gather while the longest has at most this many places, or twice as many as the shortest.
SMALL_GATHER = 128


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One packed forward: T tokens of all rows, decode rows first.

    `ids` and `positions` [T]; `sampled` [S] packed indices of the tokens whose logits are wanted, in the order of
    `order`, which gives for each of them its row's index in the list that was packed.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    sampled: torch.Tensor
    order: tuple[int, ...]
    attention: AttentionMeta


def pack(rows: Sequence[Row], block_size: int) -> StepBatch:
    """Return the batch of `rows`: at least one, each with at least one id and blocks for all its positions."""
    decodes = sorted((i for i, row in enumerate(rows) if len(row.ids) == 1), key=lambda i: rows[i].start)
    chunks = [i for i, row in enumerate(rows) if len(row.ids) > 1]
    ids: list[int] = []
    positions: list[int] = []
    sampled: list[int] = []
    order: list[int] = []
    places: list[torch.Tensor] = []
    spans: list[tuple[int, int]] = []
    for index in [*decodes, *chunks]:
        row = rows[index]
        end = row.start + len(row.ids)
        spans.append((len(ids), len(ids) + len(row.ids)))
        ids.extend(row.ids)
        positions.extend(range(row.start, end))
        places.append(_places(row.blocks, end, block_size))
        if row.samples:
            sampled.append(len(ids) - 1)
            order.append(index)
    groups = _decode_groups([rows[i].start + 1 for i in decodes], places)
    written = [row_places[rows[i].start :] for row_places, i in zip(places, [*decodes, *chunks], strict=True)]
    first = len(decodes)
    return StepBatch(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        sampled=torch.tensor(sampled, dtype=torch.long),
        order=tuple(order),
        attention=AttentionMeta(
            places=torch.cat(written),
            groups=groups,
            chunks=tuple(
                Chunk(begin, end, rows[i].start, row_places)
                for i, (begin, end), row_places in zip(chunks, spans[first:], places[first:], strict=True)
            ),
        ),
    )


def _places(blocks: Sequence[int], length: int, block_size: int) -> torch.Tensor:
    """The places of positions 0 … length - 1."""
    used = torch.tensor(blocks[: -(-length // block_size)])
    return (used[:, None] * block_size + torch.arange(block_size)).view(-1)[:length]


def _decode_groups(lengths: list[int], places: list[torch.Tensor]) -> tuple[DecodeGroup, ...]:
    """Group decode rows, sorted by length, so that padding at most doubles a gather above SMALL_GATHER."""
    groups: list[DecodeGroup] = []
    begin = 0
    for i in range(1, len(lengths) + 1):
        if i < len(lengths) and lengths[i] <= max(SMALL_GATHER, 2 * lengths[begin]):
            continue
        longest = lengths[i - 1]
        index = torch.zeros(i - begin, longest, dtype=torch.long)
        for row, row_places in enumerate(places[begin:i]):
            index[row, : row_places.shape[0]] = row_places
        groups.append(DecodeGroup(begin, i, index, torch.tensor(lengths[begin:i])))
        begin = i
    return tuple(groups)
