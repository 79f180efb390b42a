"""Repetition, presence and frequency penalties, from a history of tokens for each row that uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.core.step import Row
from inference.sampling.state import Penalties

MIN_WIDTH = 256


@dataclass(slots=True)
class _Lane:
    """The sequence whose tokens a line of the tensors has: `history` before output token number `output`."""

    number: int
    history: Sequence[int] = ()
    output: int = -1
    length: int = 0


class Histories:
    """The tokens of the rows with penalties, prompt first, and how often each stands in the output.

    Two tensors, one line for each slot that ever had such a row: `ids`, and `counts` of the id at that place in the
    output so far. A step reads and writes only the logits of these ids. A line is built when its row is admitted, and
    follows the sampled tokens from then on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lanes: dict[int, _Lane] = {}  # by slot
        self._ids = torch.zeros(0, MIN_WIDTH, dtype=torch.long, device=device)
        self._counts = torch.zeros(0, MIN_WIDTH, dtype=torch.float32, device=device)

    def apply(self, logits: torch.Tensor, numbers: torch.Tensor, rows: Sequence[Row], penalties: Penalties) -> None:
        """Penalise in place the lines `numbers` [n] of `logits` [rows, vocabulary], which belong to the n `rows`."""
        lanes = [self._lane(row) for row in rows]
        lengths = self._tensor([lane.length for lane in lanes])[:, None]
        longest = max(lane.length for lane in lanes)
        lines = self._tensor([lane.number for lane in lanes])
        padding = torch.arange(longest, device=self._device) >= lengths
        # A token that stands there several times, and the first one as padding, is written several times alike.
        ids = self._ids[lines, :longest]
        ids = torch.where(padding, ids[:, :1], ids)
        counts = self._counts[lines, :longest]
        counts = torch.where(padding, counts[:, :1], counts)
        flat = logits.view(-1)
        places = numbers[:, None] * logits.shape[1] + ids
        values = flat[places]
        values = torch.where(values > 0, values / penalties.repetition, values * penalties.repetition)
        values -= counts * penalties.frequency + (counts > 0) * penalties.presence
        flat[places] = values

    def append(self, rows: Sequence[Row], tokens: torch.Tensor) -> None:
        """Append the `tokens` [n] that were sampled for `rows`, to which `apply` was called in this step."""
        lanes = [self._lanes[row.slot] for row in rows]
        longest = max(lane.length for lane in lanes) + 1
        self._widen(longest)
        lines = self._tensor([lane.number for lane in lanes])
        lengths = self._tensor([lane.length for lane in lanes])
        self._ids[lines, lengths] = tokens
        self._counts[lines, lengths] = 0
        counts = self._counts[lines, :longest]
        within = torch.arange(longest, device=self._device) <= lengths[:, None]
        same = (self._ids[lines, :longest] == tokens[:, None]) & within
        count = (counts * same).amax(1, keepdim=True) + 1
        self._counts[lines, :longest] = torch.where(same, count, counts)
        for lane in lanes:
            lane.length += 1
            lane.output += 1

    def _lane(self, row: Row) -> _Lane:
        lane = self._lanes.get(row.slot)
        if lane is None:
            lane = self._lanes[row.slot] = _Lane(len(self._lanes))
        # The list itself tells the sequence, and the number of output tokens that nothing was lost or undone since.
        if lane.history is not row.history or lane.output != row.output_index:
            self._build(lane, row)
        return lane

    def _build(self, lane: _Lane, row: Row) -> None:
        known = row.start + len(row.ids) - row.drafts
        tokens = list(row.history[:known])
        self._widen(known)
        occurrences = Counter(tokens[known - row.output_index :])
        self._ids[lane.number, :known] = self._tensor(tokens)
        counts = torch.tensor([occurrences[token] for token in tokens], dtype=torch.float32)
        self._counts[lane.number, :known] = counts.to(self._device)
        lane.history, lane.output, lane.length = row.history, row.output_index, known

    def _widen(self, width: int) -> None:
        """Make room for `width` tokens in each line, and for every line."""
        lines, columns = self._ids.shape
        if columns >= width and lines >= len(self._lanes):
            return
        width = columns if columns >= width else max(2 * columns, width)
        count = lines if lines >= len(self._lanes) else max(2 * lines, len(self._lanes))
        for name in ("_ids", "_counts"):
            old = getattr(self, name)
            new = old.new_zeros(count, width)
            new[:lines, :columns] = old
            setattr(self, name, new)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device)
