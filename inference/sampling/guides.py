"""Guided rows: a matcher for each, which says which tokens may come next and follows those that are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inference.core.grammar import GrammarError, Matcher
from inference.core.step import Row, RowFailure

FAILED = "guidance_failed"

Words = npt.NDArray[np.uint32]


@dataclass(slots=True)
class _Guide:
    """Where the sequence in one slot is: behind `output` tokens of its `history`; `mask` once it was asked for."""

    history: Sequence[int]
    matcher: Matcher
    output: int = 0
    mask: Words | None = None


class Guides:
    """The matchers by slot.

    One is begun when its row is admitted, and walks through the tokens so far, so that a row that was preempted or came
    from another engine goes on as it would have. From then on it follows what is sampled. Belongs to one thread at a
    time.
    """

    def __init__(self) -> None:
        self._guides: dict[int, _Guide] = {}
        self._failures: dict[int, RowFailure] = {}  # by slot, of those in `_guides` that can't go on

    def fill(self, rows: Sequence[Row]) -> None:
        """Find the masks of those `rows` that are guided and sample: `masks` has them at once then."""
        for row in rows:
            if row.samples and row.grammar is not None:
                self._mask(row)

    def masks(self, rows: Sequence[Row]) -> tuple[torch.Tensor, dict[int, RowFailure]]:
        """Return what each of `rows`, all guided, permits next, and by number those that can't go on.

        int32 [rows, words]: bit i % 32 of word i // 32 for token i, as many as the longest has: one of a tokenizer with
        more tokens than its model is longer than that of a thought. A row that can't go on permits nothing. Below
        `min_tokens` the tokens that would end a row are not permitted, unless nothing else is.
        """
        masks: list[Words | None] = []
        failures: dict[int, RowFailure] = {}
        for number, row in enumerate(rows):
            mask = self._mask(row)
            if mask is None:
                failures[number] = self._failures[row.slot]
            elif row.banned and row.output_index < row.sampling.min_tokens:
                mask = _without(mask, row.banned)
            masks.append(mask)
        width = max((len(mask) for mask in masks if mask is not None), default=1)
        both = np.zeros((len(rows), width), dtype=np.uint32)
        for line, mask in zip(both, masks, strict=True):
            if mask is not None:
                line[: len(mask)] = mask
        return torch.from_numpy(both.view(np.int32)), failures

    def append(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        """Go on behind the `tokens` that were sampled for `rows`, whose masks were taken in this step."""
        for row, token in zip(rows, tokens, strict=True):
            guide = self._guides[row.slot]
            guide.output += 1
            guide.mask = None
            try:
                guide.matcher.accept(token)
            except GrammarError as error:
                self._failures[row.slot] = _too_complex(row, error)

    def forget(self, rows: Sequence[Row]) -> None:
        """Drop the matchers of slots that now belong to rows without guidance."""
        if self._guides:
            for row in rows:
                if row.grammar is None and self._guides.pop(row.slot, None) is not None:
                    self._failures.pop(row.slot, None)

    def _mask(self, row: Row) -> Words | None:
        """Return what `row` permits next; None if it can't go on."""
        guide = self._guides.get(row.slot)
        # The list itself tells the sequence, and the number of output tokens that nothing was lost or undone since.
        if guide is None or guide.history is not row.history or guide.output != row.output_index:
            guide = self._begin(row)
        if row.slot in self._failures:
            return None
        if guide.mask is None:
            try:
                guide.mask = np.frombuffer(guide.matcher.mask(), dtype="<u4")
            except GrammarError as error:
                self._failures[row.slot] = _too_complex(row, error)
        return guide.mask

    def _begin(self, row: Row) -> _Guide:
        assert row.grammar is not None
        self._failures.pop(row.slot, None)
        guide = self._guides[row.slot] = _Guide(row.history, row.grammar.begin(), row.output_index)
        known = row.start + len(row.ids) - row.drafts
        try:
            for token in row.history[known - row.output_index : known]:
                guide.matcher.accept(token)
        except GrammarError as error:  # of tokens that another engine has permitted
            self._failures[row.slot] = RowFailure(FAILED, f"The answer so far doesn't follow its guidance: {error}")
        return guide


def field_of(row: Row) -> str:
    """Return what the client calls the field that made the row's grammar."""
    if row.sampling.guidance is not None:
        return row.sampling.guidance.param
    return row.sampling.thinking_param if row.grammar is not None and row.grammar.is_thought else "tools"


def _too_complex(row: Row, error: GrammarError) -> RowFailure:
    """Return the failure of a row whose tokens have all followed its grammar: only its limits end that."""
    param = field_of(row)
    message = f"'{param}': following it took too much, so the answer ends here; make it simpler ({error})"
    return RowFailure(FAILED, message, param)


def _without(mask: Words, tokens: Sequence[int]) -> Words:
    """Return `mask` without `tokens`, or as it is if nothing is left."""
    rest = mask.copy()
    for token in tokens:
        if token // 32 < len(rest):
            rest[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
    return rest if rest.any() else mask
