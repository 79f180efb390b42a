"""Running planned steps on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.core.step import EncodeRow, Row, RowFailure, StepPlan, StepResult
from inference.execution.attention.base import Attention
from inference.execution.backend import CausalBackend, EncoderBackend, Pending
from inference.execution.inputs import Packer
from inference.sampling.sampler import Sampler


class CompletedStep:
    """A step that has run: its result, or what it raised."""

    def __init__(self, outcome: StepResult | Exception) -> None:
        self._outcome = outcome

    def wait(self) -> StepResult:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class CPURunner:
    """Runs steps in the calling thread: `launch` returns when the step is done.

    A row that can't run (an id outside the vocabulary, a position past the context or its blocks) fails alone and is
    left out of the batch; what the model itself raises fails the step. `limit` bounds a row's length, `max_tokens` a
    step's.
    """

    def __init__(
        self,
        *,
        causal: tuple[CausalBackend, Attention] | None = None,
        encoder: EncoderBackend | None = None,
        limit: int,
        max_tokens: int = 0,
    ) -> None:
        self._causal = None if causal is None else causal[0]
        self._packer = None if causal is None else Packer(causal[1], max_tokens=max_tokens)
        self._encoder = encoder
        self._limit = limit
        self._sampler = Sampler(torch.device("cpu"))
        self._checked: dict[int, tuple[int, ...]] = {}  # by slot, a block table that was found sound

    def launch(self, plan: StepPlan) -> Pending:
        try:
            with torch.inference_mode():
                return CompletedStep(StepResult(tokens=self._generate(plan.rows), vectors=self._encode(plan.encodes)))
        except Exception as error:  # noqa: BLE001 - whatever the model raised belongs to this step, and wait() raises it
            # A new error, since the traceback of the original would keep the step's tensors in memory.
            return CompletedStep(MemoryError(str(error)) if _lacks_memory(error) else error)

    def _generate(self, rows: Sequence[Row]) -> tuple[int | RowFailure | None, ...]:
        if not rows:
            return ()
        model, packer = self._causal, self._packer
        if model is None or packer is None:
            raise TypeError("this model makes embeddings, not tokens")
        results: list[int | RowFailure | None] = [self._fault(row, model.vocab_size, packer) for row in rows]
        sound = [i for i, fault in enumerate(results) if fault is None]
        if sound:
            hidden = model.forward(packer.pack([rows[i] for i in sound]))
            sampling = [i for i in sound if rows[i].samples]
            if sampling:
                sampled = self._sampler.sample(model.logits(hidden), [rows[i] for i in sampling])
                for number, (i, token) in enumerate(zip(sampling, sampled.tokens.tolist(), strict=True)):
                    results[i] = sampled.failures.get(number, token)
        return tuple(results)

    def _encode(self, rows: Sequence[EncodeRow]) -> tuple[bytes | RowFailure, ...]:
        if not rows:
            return ()
        if self._encoder is None:
            raise TypeError("this model makes tokens, not embeddings")
        faults = [_input_fault(row.ids, self._encoder.vocab_size, self._limit, count=len(row.ids)) for row in rows]
        sound = [i for i, fault in enumerate(faults) if fault is None]
        failure = RowFailure("non_finite_vector", "The model gave a vector that is not finite for this input.")
        results: list[bytes | RowFailure] = [fault or failure for fault in faults]
        if sound:
            vectors = self._encoder.encode([rows[i].ids for i in sound])
            finite = torch.isfinite(vectors).all(1).tolist()
            for i, vector, ok in zip(sound, vectors, finite, strict=True):
                if ok:
                    results[i] = vector.numpy().astype("<f4").tobytes()
        return tuple(results)

    def _fault(self, row: Row, vocabulary: int, packer: Packer) -> RowFailure | None:
        """Return why the row can't run, or None."""
        cache = packer.attention.cache
        end = row.start + row.count
        if end > len(row.blocks) * cache.block_size:
            return RowFailure("bad_row", f"The row's blocks don't hold position {end - 1}.")
        if self._checked.get(row.slot) is not row.blocks:
            if not 0 < min(row.blocks) <= max(row.blocks) < cache.blocks:
                return RowFailure("bad_row", "The row names a block that doesn't exist.")
            self._checked[row.slot] = row.blocks
        return _input_fault(row.ids, vocabulary, self._limit, start=row.start, count=row.count)


def _lacks_memory(error: Exception) -> bool:
    """Whether memory ran out. On the CPU torch raises a RuntimeError, which only its message tells apart."""
    words = ("can't allocate memory", "not enough memory", "std::bad_alloc")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _input_fault(ids: Sequence[int], vocabulary: int, limit: int, *, count: int, start: int = 0) -> RowFailure | None:
    """Return why a row of `count` tokens, of which `ids` are known, can't be computed; or None."""
    if not count:
        return RowFailure("bad_row", "The row has no tokens.")
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        return RowFailure("bad_token_id", f"A token id is outside the vocabulary of {vocabulary}.")
    if start + count > limit:
        return RowFailure("too_long", f"Position {start + count - 1} is past the model's limit of {limit} tokens.")
    return None
