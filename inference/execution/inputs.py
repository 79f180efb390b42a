"""The tensors of one forward pass, made from planned rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference.core.step import Row
from inference.execution.adapters import Span
from inference.execution.attention.base import Attention, AttentionInputs
from inference.execution.attention.tables import BlockTables


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One packed forward: the T tokens of all rows, row by row. Valid until the next one is packed.

    `ids` and `positions` [T] and `sampled` [S], the packed indices of the tokens whose logits are wanted, are on the
    model's device; row r has `samples[r]` of the sampled tokens. `attention` is ready to store and attend. `adapted`
    are the tokens that have adapters.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    sampled: torch.Tensor
    samples: tuple[int, ...]
    attention: Attention
    adapted: tuple[Span, ...] = ()


class Packer:
    """Packs rows into the inputs of a model whose K/V are in the cache of `attention`.

    A step has up to `max_tokens` tokens. The inputs stand in buffers that are kept, so that a graph of the device finds
    them where they were, and reach the device in one transfer. The transfer of one step may still be under way while
    the next is packed: two buffers on the host take turns. `last_tokens` [slots] is on the device; whoever samples
    writes each slot's newest token there, from where rows that follow it take it.
    """

    def __init__(self, attention: Attention, *, max_tokens: int) -> None:
        cache = attention.cache
        rows = attention.max_rows
        on_host = cache.device.type == "cpu"
        self.attention = attention
        self.last_tokens = torch.zeros(rows, dtype=torch.long, device=cache.device)
        self._tables = BlockTables(rows, attention.max_blocks, cache.device)
        # Four parts of int64 (ids, positions, places, sampled), then three of int32 (begins, lengths, slots).
        ends: list[int] = np.cumsum([max_tokens] * 4 + [rows // 2 + 1] * 3).tolist()
        hosts = [torch.zeros(ends[-1], dtype=torch.long, pin_memory=not on_host) for _ in range(2)]
        self._max_tokens = max_tokens
        self._device = None if on_host else torch.zeros_like(hosts[0], device=cache.device)
        self._turns = [(h, _split(h.numpy(), ends), _split(h if on_host else self._device, ends)) for h in hosts]

    def pack(self, rows: Sequence[Row]) -> StepBatch:
        """Return the batch of `rows`: at least one, each with a token at least and blocks for all its positions."""
        self._turns.reverse()
        host, parts, on_device = self._turns[0]
        ids, positions, places, sampled, begins, lengths, slots = parts
        begins, lengths, slots = begins[: len(rows) + 1], lengths[: len(rows)], slots[: len(rows)]
        columns: Any = Row._make(zip(*rows, strict=True))  # each field of all rows: ten passes over them take longer
        known_counts = np.fromiter(map(len, columns.ids), np.int64, len(rows))
        follows = any(columns.follows)
        counts = known_counts + np.array(columns.follows) if follows else known_counts
        starts = np.array(columns.start)
        begins[0] = 0
        begins[1:] = np.cumsum(counts)
        lengths[:] = starts + counts
        slots[:] = columns.slot
        tokens = int(begins[-1])
        if tokens > self._max_tokens:
            raise ValueError(f"a step of {tokens} tokens, where {self._max_tokens} are the most")
        # A token that only the device knows stands as -1 - its slot.
        if follows:
            ids[:tokens] = [i for row in rows for i in ((-1 - row.slot, *row.ids) if row.follows else row.ids)]
        else:
            ids[:tokens] = list(chain.from_iterable(columns.ids))
        positions, places = positions[:tokens], places[:tokens]
        if tokens == len(rows):
            positions[:] = starts
            lines = slots
        else:
            positions[:] = np.arange(tokens) + np.repeat(starts - begins[:-1], counts)
            lines = np.repeat(slots, counts)
        self._tables.update(columns.slot, columns.blocks)
        size = self.attention.cache.block_size
        blocks = positions // size
        places[:] = self._tables.host[lines, blocks] * np.int64(size) + (positions - blocks * size)
        samples = columns.samples
        if any(columns.drafts) or any(columns.targets):
            samples = tuple([row.count if row.targets else 1 + row.drafts if row.samples else 0 for row in rows])
        wanted = _last_of_each(begins[1:], samples)
        sampled[: len(wanted)] = wanted
        if self._device is not None:
            self._device.copy_(host, non_blocking=True)
        device_ids = on_device[0][:tokens]
        if follows:
            known = self.last_tokens[(-1 - device_ids).clamp_(min=0)]
            device_ids.copy_(torch.where(device_ids < 0, known, device_ids))
        self.attention.prepare(
            AttentionInputs(
                begins=on_device[4][: len(rows) + 1],
                lengths=on_device[5][: len(rows)],
                slots=on_device[6][: len(rows)],
                tables=self._tables.device,
                places=on_device[2][:tokens],
                host_begins=begins,
                host_lengths=lengths,
                host_slots=slots,
            )
        )
        return StepBatch(
            device_ids,
            on_device[1][:tokens],
            on_device[3][: len(wanted)],
            samples,
            self.attention,
            _adapted(rows, begins.tolist()) if any(columns.adapter) else (),
        )


def by_adapter(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of `rows` in an order in which those of one adapter are neighbours, for fewer products."""
    return sorted(range(len(rows)), key=lambda number: rows[number].adapter)


def _adapted(rows: Sequence[Row], begins: Sequence[int]) -> tuple[Span, ...]:
    """Return the spans of neighbouring rows with the same adapter; row r has the tokens from `begins[r]` on."""
    spans: list[Span] = []
    for number, row in enumerate(rows):
        if spans and row.adapter and (spans[-1][0], spans[-1][2]) == (row.adapter, begins[number]):
            spans[-1] = (row.adapter, spans[-1][1], begins[number + 1])
        elif row.adapter:
            spans.append((row.adapter, begins[number], begins[number + 1]))
    return tuple(spans)


def _split(buffer: Any, ends: list[int]) -> list[Any]:
    """Return the parts of a buffer, which is a tensor or an array."""
    parts = [buffer[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    int32 = torch.int32 if isinstance(buffer, torch.Tensor) else np.int32
    return [*parts[:4], *(part.view(int32) for part in parts[4:])]


def _last_of_each(ends: npt.NDArray[np.int32], samples: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Return the indices of the last `samples[r]` tokens of each row, which ends before `ends[r]`."""
    counts = np.array(samples, np.int32)
    if counts.max() <= 1:
        return ends[counts > 0] - 1
    total = np.cumsum(counts, dtype=np.int32)
    return np.arange(total[-1], dtype=np.int32) + np.repeat(ends - total, counts)
