"""Running planned steps on CUDA: `launch` gives the device its work and returns, `wait` takes the tokens.

The next step may be launched before this one's tokens are known: they stay on the device, where rows that follow find
them by slot. What comes back to the host is copied into pinned memory behind the step's work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from inference.core.step import NOTHING_SAMPLED, Row, RowFailure, RowResult, StepPlan, StepResult
from inference.cuda.device import Device, is_lost
from inference.cuda.graphs import DecodeGraphs
from inference.cuda.sampler import DeviceSampler
from inference.errors import DeviceLostError
from inference.execution.answers import answers, newest
from inference.execution.attention.base import Attention
from inference.execution.backend import CausalBackend, Pending
from inference.execution.checks import RowChecks, lacks_memory
from inference.execution.inputs import Packer, by_adapter
from inference.sampling.sampler import NON_FINITE


class LaunchedStep:
    """A step on its way: `finish` waits for it and returns its result, or raises what it raised."""

    def __init__(self, finish: Callable[[], StepResult]) -> None:
        self._finish = finish
        self._outcome: StepResult | Exception | None = None

    def wait(self) -> StepResult:
        if self._outcome is None:
            try:
                self._outcome = self._finish()
            except Exception as error:  # noqa: BLE001 - whatever the device raised belongs to this step
                self._outcome = told(error)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class CudaRunner:
    """Runs a causal model's steps on `device`. `limit` bounds a row's length, `max_tokens` a step's.

    `attention` must have been made for one row more than any step has: the last slot is for rows that fill up graphs.
    A row that can't run fails alone. Out of memory is a MemoryError of the step; an error that leaves the device
    unusable is a DeviceLostError.
    """

    overlaps = True

    def __init__(
        self, model: CausalBackend, attention: Attention, device: Device, *, limit: int, max_tokens: int
    ) -> None:
        self._model = model
        self._device = device
        self._packer = Packer(attention, max_tokens=max_tokens)
        self._checks = RowChecks(model.vocab_size, attention.cache, limit, model.adapters or ())
        self._sampler = DeviceSampler(device.name)
        self._rows = attention.max_rows - 1
        self.graphs = DecodeGraphs(model, self._packer, device, padding=self._rows)

    def capture(self) -> None:
        """Capture decoding steps; `graphs.failure` says why it isn't possible, and nothing else changes then."""
        with self._device.active(), torch.inference_mode():
            self.graphs.capture(self._rows)

    def launch(self, plan: StepPlan) -> Pending:
        try:
            with self._device.active(), torch.inference_mode():
                return self._generate(plan)
        except Exception as error:  # noqa: BLE001 - whatever the model raised belongs to this step, and wait() raises it
            failure = told(error)
            if isinstance(failure, MemoryError):
                self._device.release()
            return LaunchedStep(lambda: _raise(failure))

    def _generate(self, plan: StepPlan) -> Pending:
        if plan.encodes:
            raise TypeError("this model makes tokens, not embeddings")
        rows = plan.rows
        faults = self._checks.faults(rows)
        results: list[RowResult | RowFailure] = [faults.get(i, NOTHING_SAMPLED) for i in range(len(rows))]
        sound = [i for i in by_adapter(rows) if i not in faults]
        sampling = [i for i in sound if rows[i].samples]
        if not sound:
            return LaunchedStep(lambda: StepResult(tuple(results)))
        chosen = [rows[i] for i in sound]
        if any(row.drafts or row.targets for row in chosen):
            for i, given in zip(sound, self._answers(chosen), strict=True):
                results[i] = given
            return LaunchedStep(lambda: StepResult(tuple(results)))
        hidden = self.graphs.forward(chosen)
        if hidden is None:
            hidden = self._model.forward(self._packer.pack(chosen))
        if not sampling:
            done = self._device.mark()
            return LaunchedStep(lambda: _after(done, StepResult(tuple(results))))
        asking = [rows[i] for i in sampling]
        self._sampler.general.fill_masks(asking)  # while the device computes
        choice = self._sampler.sample(self._model.logits(hidden), asking)
        self._keep([row.slot for row in asking], choice.tokens.clamp(min=0))
        tokens = self._device.pinned(len(asking))
        tokens.copy_(choice.tokens, non_blocking=True)
        done = self._device.mark()

        def finish() -> StepResult:
            done()
            for number, (i, token) in enumerate(zip(sampling, tokens.tolist(), strict=True)):
                logprobs = choice.logprobs.get(number)
                result = RowResult((token,), () if logprobs is None else (logprobs,))
                results[i] = choice.failures.get(number, NON_FINITE if token < 0 else result)
            return StepResult(tuple(results))

        return LaunchedStep(finish)

    def _answers(self, rows: Sequence[Row]) -> list[RowResult | RowFailure]:
        """Return what rows give of which some have drafts or tell of their prompt; it waits for the device."""
        batch = self._packer.pack(rows)
        hidden = self._model.forward(batch)
        self._sampler.general.fill_masks(rows)
        given = answers(self._sampler.general, self._model, hidden, rows, batch.samples)
        if known := newest(rows, given):
            self._keep(list(known), torch.tensor(list(known.values())).to(self._device.name))
        return given

    def _keep(self, slots: list[int], tokens: torch.Tensor) -> None:
        """Keep the newest `tokens` of `slots` for the rows that follow."""
        places = torch.tensor(slots)
        if self._device.name.type != "cpu":
            places = places.pin_memory().to(self._device.name, non_blocking=True)
        self._packer.last_tokens.index_copy_(0, places, tokens)


def told(error: Exception) -> Exception:
    """Return `error` as callers know it, without the traceback that would keep a step's tensors in memory."""
    if lacks_memory(error):
        return MemoryError(str(error))
    if is_lost(error):
        return DeviceLostError(
            f"device_lost: the GPU can't be used any more by this process: {str(error).partition(chr(10))[0]}"
        )
    return error


def _raise(error: Exception) -> StepResult:
    raise error


def _after(done: Callable[[], None], result: StepResult) -> StepResult:
    done()
    return result
