"""Why a row can't be computed, and why a step couldn't."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from inference.core.step import Row, RowFailure
from inference.execution.kv_cache import KVCache


class RowChecks:
    """The bounds of one model's rows: its vocabulary, its cache's blocks, and `limit`, the most tokens of a row.

    `adapters` has the keys of the adapters in memory.
    """

    def __init__(self, vocabulary: int, cache: KVCache, limit: int, adapters: Container[str] = ()) -> None:
        self._adapters = adapters
        self._vocabulary = vocabulary
        self._cache = cache
        self._limit = limit
        self._checked: dict[int, tuple[int, ...]] = {}  # by slot, a block table that was found sound

    def faults(self, rows: Sequence[Row]) -> dict[int, RowFailure]:
        """Return why rows can't run, by their number."""
        size, limit, vocabulary, checked = self._cache.block_size, self._limit, self._vocabulary, self._checked
        found: dict[int, RowFailure] = {}
        for number, row in enumerate(rows):
            ids, start, blocks = row.ids, row.start, row.blocks
            end = start + len(ids) + row.follows
            if (  # nearly always; calling a function for each row would cost more than all of it
                start < end <= limit
                and end <= len(blocks) * size
                and (not ids or 0 <= min(ids) <= max(ids) < vocabulary)
                and checked.get(row.slot) is blocks
                and not row.adapter
            ):
                continue
            fault = self._fault(row)
            if fault is not None:
                found[number] = fault
        return found

    def _fault(self, row: Row) -> RowFailure | None:
        end = row.start + row.count
        if end > len(row.blocks) * self._cache.block_size:
            return RowFailure("bad_row", f"The row's blocks don't hold position {end - 1}.")
        if row.adapter and row.adapter not in self._adapters:
            return RowFailure("unknown_adapter", "The request's adapter isn't there any more.")
        if self._checked.get(row.slot) is not row.blocks:
            if not 0 < min(row.blocks) <= max(row.blocks) < self._cache.blocks:
                return RowFailure("bad_row", "The row names a block that doesn't exist.")
            self._checked[row.slot] = row.blocks
        return input_fault(row.ids, self._vocabulary, self._limit, start=row.start, count=row.count)


def input_fault(ids: Sequence[int], vocabulary: int, limit: int, *, count: int, start: int = 0) -> RowFailure | None:
    """Return why a row of `count` tokens, of which `ids` are known, can't be computed; or None."""
    if not count:
        return RowFailure("bad_row", "The row has no tokens.")
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        return RowFailure("bad_token_id", f"A token id is outside the vocabulary of {vocabulary}.")
    if start + count > limit:
        return RowFailure("too_long", f"Position {start + count - 1} is past the model's limit of {limit} tokens.")
    return None


def lacks_memory(error: Exception) -> bool:
    """Whether memory ran out. All but torch's allocator on a GPU raise a RuntimeError, which its message tells apart:
    torch on the CPU, CUDA itself (as for a graph), Triton and cuBLAS.
    """
    words = (
        "can't allocate memory",
        "not enough memory",
        "std::bad_alloc",
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
    )
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
