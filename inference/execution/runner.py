"""Running planned steps on a model in torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from inference.core.step import EncodeRow, Row, RowFailure, RowResult, StepPlan, StepResult
from inference.execution.answers import answers, newest
from inference.execution.attention.base import Attention
from inference.execution.backend import CausalBackend, ClassifierBackend, EncoderBackend, Pending
from inference.execution.checks import RowChecks, input_fault, lacks_memory
from inference.execution.inputs import Packer, by_adapter
from inference.sampling.passes import Passes
from inference.sampling.sampler import Sampler


class CompletedStep:
    """A step that has run: its result, or what it raised."""

    def __init__(self, outcome: StepResult | Exception) -> None:
        self._outcome = outcome

    def wait(self) -> StepResult:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class RunningStep:
    """A step that runs in the runner's thread."""

    def __init__(self, outcome: Future[StepResult | Exception]) -> None:
        self._outcome = outcome

    def wait(self) -> StepResult:
        return CompletedStep(self._outcome.result()).wait()


class TorchRunner:
    """Runs steps on the device of the model's cache: an encoder's and those without `overlaps` before `launch` returns.

    With `overlaps` steps run one after the other in a thread of their own, while the caller commits the last and plans
    the next one. A row that can't run (an id outside the vocabulary, a position past the context or its blocks) fails
    alone and is left out of the batch; what the model itself raises fails the step. `limit` bounds a row's length,
    `max_tokens` a step's. `passes` are the sampler's over logits (default: torch's operators).
    """

    def __init__(
        self,
        *,
        causal: tuple[CausalBackend, Attention] | None = None,
        encoder: EncoderBackend | None = None,
        classifier: ClassifierBackend | None = None,
        limit: int,
        max_tokens: int = 0,
        overlaps: bool = False,
        passes: Passes | None = None,
    ) -> None:
        self._causal = None if causal is None else causal[0]
        self._packer = None if causal is None else Packer(causal[1], max_tokens=max_tokens)
        self._encoder = encoder
        self._classifier = classifier
        self._limit = limit
        self._sampler = Sampler(torch.device("cpu") if causal is None else causal[1].cache.device, passes)
        self._checks = None if causal is None else _checks(*causal, limit)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="steps") if overlaps else None
        self._masks = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self.overlaps = overlaps

    def launch(self, plan: StepPlan) -> Pending:
        if self._thread is None:
            return CompletedStep(self._run(plan))
        return RunningStep(self._thread.submit(self._run, plan))

    def _run(self, plan: StepPlan) -> StepResult | Exception:
        try:
            with torch.inference_mode():
                return StepResult(rows=self._generate(plan.rows), vectors=self._encode(plan.encodes))
        except Exception as error:  # noqa: BLE001 - whatever the model raised belongs to this step, and wait() raises it
            # A new error, since the traceback of the original would keep the step's tensors in memory.
            return MemoryError(str(error)) if lacks_memory(error) else error

    def _generate(self, rows: Sequence[Row]) -> tuple[RowResult | RowFailure, ...]:
        if not rows:
            return ()
        model, packer, checks = self._causal, self._packer, self._checks
        if model is None or packer is None or checks is None:
            raise TypeError("this model makes embeddings, not tokens")
        faults = checks.faults(rows)
        sound = [row for number, row in enumerate(rows) if number not in faults] if faults else rows
        given: list[RowResult | RowFailure] = []
        order = by_adapter(sound) if any(row.adapter for row in sound) else None
        if order is not None:
            sound = [sound[number] for number in order]
        if sound:
            batch = packer.pack(sound)
            guided = [row for row in sound if row.grammar is not None and row.samples]
            masks = self._masks.submit(self._sampler.fill_masks, guided) if guided else None
            hidden = model.forward(batch)
            if masks is not None:
                masks.result()
            given = answers(self._sampler, model, hidden, sound, batch.samples)
            # Without overlap no row follows a token that isn't known.
            if self.overlaps and (known := newest(sound, given)):
                tokens = torch.tensor([list(known), list(known.values())]).to(packer.last_tokens.device)
                packer.last_tokens[tokens[0]] = tokens[1]
        if order is not None:
            given = [result for _, result in sorted(zip(order, given, strict=True), key=lambda pair: pair[0])]
        results = iter(given)
        return tuple([faults[number] if number in faults else next(results) for number in range(len(rows))])

    def _encode(self, rows: Sequence[EncodeRow]) -> tuple[bytes | RowFailure, ...]:
        if not rows:
            return ()
        model = self._encoder or self._classifier
        if model is None:
            raise TypeError("this model makes tokens, not embeddings")
        faults = [input_fault(row.ids, model.vocab_size, self._limit, count=len(row.ids)) for row in rows]
        sound = [i for i, fault in enumerate(faults) if fault is None]
        failure = RowFailure("non_finite_vector", "The model gave a vector that is not finite for this input.")
        results: list[bytes | RowFailure] = [fault or failure for fault in faults]
        if sound:
            for i, vector in zip(sound, self._vectors([rows[i] for i in sound]), strict=True):
                if torch.isfinite(vector).all():
                    results[i] = vector.numpy().astype("<f4").tobytes()
        return tuple(results)

    def _vectors(self, rows: list[EncodeRow]) -> Iterable[torch.Tensor]:
        """Return what the model makes of each row, float32 on the CPU."""
        ids = [row.ids for row in rows]
        if self._classifier is not None:
            return self._classifier.classify(ids, [row.labels for row in rows if row.labels is not None])
        assert self._encoder is not None
        return self._encoder.encode(ids, [row.second for row in rows])


def _checks(model: CausalBackend, attention: Attention, limit: int) -> RowChecks:
    return RowChecks(model.vocab_size, attention.cache, limit, model.adapters or ())
