"""Rows become the tensors of a step: packed in their order, placed by their block tables, which are appended to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inference.core.step import Row
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.attention.tables import BlockTables
from inference.execution.inputs import Packer
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.types import SamplingParams


def row(slot: int, ids: tuple[int, ...], start: int, blocks: tuple[int, ...], **more: Any) -> Row:
    more = {"samples": True, **more}
    return Row(slot, str(slot), ids, start, blocks, output_index=0, sampling=SamplingParams(), seed=0, **more)


def packer(max_tokens: int = 16) -> tuple[Packer, ReferenceAttention]:
    cache = KVCache(KVSpec((LayerShape(1, 4, 4),), torch.float32), 12, 4)
    attention = ReferenceAttention(cache, max_rows=5, max_blocks=4)
    return Packer(attention, max_tokens=max_tokens), attention


def test_rows_are_packed_in_their_order() -> None:
    packs, attention = packer()
    rows = [
        row(0, (7, 8), 0, (1,)),
        row(4, (9,), 5, (2, 3)),
        row(2, (1, 2, 3), 0, (4,), samples=False),
        row(3, (6,), 2, (5,)),
    ]
    batch = packs.pack(rows)
    assert batch.ids.tolist() == [7, 8, 9, 1, 2, 3, 6]
    assert batch.positions.tolist() == [0, 1, 5, 0, 1, 2, 2]
    assert batch.sampled.tolist() == [1, 2, 6]
    assert batch.samples == (1, 1, 0, 1)
    inputs = attention.inputs
    assert inputs.begins.tolist() == inputs.host_begins.tolist() == [0, 2, 3, 6, 7]
    assert inputs.lengths.tolist() == inputs.host_lengths.tolist() == [2, 6, 3, 3]
    assert inputs.slots.tolist() == inputs.host_slots.tolist() == [0, 4, 2, 3]
    assert inputs.places.tolist() == [4, 5, 13, 16, 17, 18, 22]
    assert inputs.tables[[0, 4, 2, 3]].tolist() == [[1, 0, 0, 0], [2, 3, 0, 0], [4, 0, 0, 0], [5, 0, 0, 0]]
    assert [inputs.begins.dtype, inputs.lengths.dtype, inputs.slots.dtype, inputs.tables.dtype] == [torch.int32] * 4
    assert inputs.places.dtype == torch.int64


def test_a_row_of_drafts_is_sampled_behind_each() -> None:
    packs, _ = packer()
    batch = packs.pack([row(0, (7, 8, 9), 3, (1, 2), drafts=2), row(1, (5, 6), 0, (3,)), row(2, (4,), 0, (4,))])
    assert batch.samples == (3, 1, 1)
    assert batch.sampled.tolist() == [0, 1, 2, 4, 5]


def test_a_row_that_follows_takes_its_slots_newest_token() -> None:
    packs, _ = packer()
    packs.last_tokens[:] = torch.tensor([10, 11, 12, 13, 14])
    batch = packs.pack(
        [row(3, (), 2, (1,), follows=True), row(1, (6,), 1, (2,)), row(0, (8, 9), 0, (3,), follows=True)]
    )
    assert batch.ids.tolist() == [13, 6, 10, 8, 9]
    assert batch.positions.tolist() == [2, 1, 0, 1, 2]
    assert packs.pack([row(4, (), 3, (5,), follows=True)]).ids.tolist() == [14]


def test_two_steps_in_turn_do_not_share_their_inputs() -> None:
    packs, _ = packer()
    first = packs.pack([row(0, (7,), 0, (1,))])
    packs.pack([row(0, (8,), 1, (1,))])
    assert first.ids.tolist() == [7]


def test_more_tokens_than_there_is_room_for_are_an_error() -> None:
    packs, _ = packer(max_tokens=3)
    with pytest.raises(ValueError, match="4 tokens, where 3 are the most"):
        packs.pack([row(0, (1, 2, 3, 4), 0, (1,))])


def test_a_table_is_appended_to_and_replaced_with_its_sequence() -> None:
    tables = BlockTables(2, 4, torch.device("cpu"))
    written: list[tuple[Any, Any]] = []

    class Watched(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            written.append((key, None))
            return super().__getitem__(key)

    blocks = (3, 4)
    tables.update([1], [blocks])
    assert tables.device.tolist() == [[0, 0, 0, 0], [3, 4, 0, 0]]
    tables.host = tables.host.view(Watched)
    tables.update([1], [blocks])
    assert written == [], "an unchanged table costs nothing"
    tables.update([1], [(3, 4, 7)])
    assert tables.device.tolist()[1] == [3, 4, 7, 0]
    # The same request after a preemption, and another's sequence: whatever stood there is gone.
    tables.update([1], [(5,)])
    assert tables.device.tolist()[1] == [5, 0, 0, 0]
    tables.update([1, 0], [(9, 3, 2, 1), (8,)])
    assert tables.device.tolist() == [[8, 0, 0, 0], [9, 3, 2, 1]]
