"""What the schedulers of a generating model and of an encoder have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from inference.core.bounds import StepBounds
from inference.core.fairness import Prices, Queued, WaitingQueue
from inference.core.output import Output, Stats
from inference.core.sequence import Ending
from inference.core.step import StepPlan, StepResult
from inference.errors import InvalidRequestError
from inference.types import EngineFault, FinishReason


class Scheduled(Queued, Protocol):
    """What a request tells every scheduler, and what that keeps of it."""

    ending: Ending | None
    in_flight: int
    submitted_at: float

    @property
    def request_id(self) -> str: ...


T = TypeVar("T", bound=Scheduled)


@dataclass(frozen=True, slots=True)
class Flight(Generic[T]):
    """A step that was planned and neither committed nor abandoned, with the request of each of its rows."""

    plan: StepPlan
    requests: tuple[T, ...]


class BaseScheduler(ABC, Generic[T]):
    """Requests from their submission to their one last output; which rows a step has is the subclass's.

    Belongs to one thread. Outputs come from `commit`, `abandon` and `take_outputs`: exactly one
    output with `finished` per submitted request, always its last. `clock` gives seconds from any fixed point.
    Steps are committed oldest first and abandoned newest first.
    """

    def __init__(self, waiting: WaitingQueue[T], bounds: StepBounds, clock: Callable[[], float]) -> None:
        self.waiting = waiting
        self.bounds = bounds
        self.clock = clock
        self.steps = 0
        self._live: dict[str, T] = {}
        self._flights: deque[Flight[T]] = deque()
        self._outputs: list[Output] = []

    # What the worker's inbox calls ------------------------------------------------------------------------------

    def submit(self, request: T) -> None:
        """Let `request` wait for its turn.

        Raise `InvalidRequestError` for what can never run, `OverloadedError` when too much waits already, and
        `DrainingError` while draining; then nothing is kept of it.
        """
        if request.request_id in self._live:
            raise InvalidRequestError(f"request {request.request_id} is here already")
        if request.weight < 1:
            raise InvalidRequestError("a tenant's weight is at least 1 thousandth")
        self._validate(request)
        self.waiting.enter(request)
        request.submitted_at = self.clock()
        self._live[request.request_id] = request

    @abstractmethod
    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Permit `allowance` output tokens in all (never fewer than before); with `is_final`, no more will come."""

    def cancel(
        self,
        request_id: str,
        reason: FinishReason = FinishReason.CANCELLED,
        *,
        stop: str | None = None,
        error: EngineFault | None = None,
    ) -> None:
        """End a request for `reason`: at once, or when the step in flight is committed, whose token is dropped then.

        A stop string ends a request so (STOP, with the string), and a text that can't be decoded (ERROR). Ended and
        unknown requests: no effect; of several reasons the first counts.
        """
        request = self._live.get(request_id)
        if request is not None:
            self._end(request, Ending(reason, stop, error))

    def cancel_all(self, reason: FinishReason = FinishReason.CANCELLED, error: EngineFault | None = None) -> None:
        """Cancel everything, as at a drain's deadline."""
        for request_id in list(self._live):
            self.cancel(request_id, reason, error=error)

    def drain(self) -> None:
        """Take no new requests; those here go on."""
        self.waiting.draining = True

    def reprice(self, prices: Prices) -> None:
        """Count service at `prices` from now on."""
        self.waiting.queue.prices = prices

    # What the loop calls ----------------------------------------------------------------------------------------

    @abstractmethod
    def plan(self) -> StepPlan | None:
        """Return the next step, or None when there is nothing to run.

        After None with no step in flight, only a call of `submit` or `extend`, or `next_deadline`, can bring work.
        After None with a step in flight, commit it and plan again.
        """

    @abstractmethod
    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        """Take in what `plan`, the oldest step in flight, computed; return every output since the last call.

        Raise ValueError, having changed nothing, when `result` doesn't answer `plan` row by row.
        """

    @abstractmethod
    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]:
        """Forget `plan`, the newest step in flight, which failed as a whole; return every output since the last call.

        Nothing of it is published or charged. Its rows run again, each alone; one that fails alone as well ends with
        an error. After a MemoryError steps are smaller for a while instead, as far as they can be.
        """

    def take_outputs(self) -> list[Output]:
        """Return the outputs since the last call, oldest first: of requests that ended outside a step."""
        outputs, self._outputs = self._outputs, []
        return outputs

    @abstractmethod
    def next_deadline(self) -> float | None:
        """When, on the clock, `plan` has to be called though nothing arrives."""

    @property
    def unfinished(self) -> int:
        """How many requests still owe their last output."""
        return len(self._live)

    @property
    def in_flight(self) -> int:
        """How many steps were planned and neither committed nor abandoned."""
        return len(self._flights)

    @abstractmethod
    def stats(self) -> Stats:
        """The state now."""

    # For subclasses ---------------------------------------------------------------------------------------------

    def _launch(self, plan: StepPlan, requests: tuple[T, ...]) -> StepPlan:
        """Put `plan` in flight; `requests` are those of its rows."""
        self.steps += 1
        self._flights.append(Flight(plan, requests))
        return plan

    def _require_oldest(self, plan: StepPlan) -> None:
        if not self._flights or self._flights[0].plan is not plan:
            raise ValueError("only the oldest step in flight can be committed")

    @staticmethod
    def _fault(error: BaseException, what: str) -> EngineFault:
        """What a request ends with that fails alone."""
        if isinstance(error, MemoryError):
            return EngineFault("out_of_memory", f"there is not enough memory for this {what} now", retryable=True)
        return EngineFault("step_failed", f"the model failed on this {what} twice ({type(error).__name__})")

    def _take_newest(self, plan: StepPlan) -> Flight[T]:
        if not self._flights or self._flights[-1].plan is not plan:
            raise ValueError("only the newest step in flight can be abandoned")
        return self._flights.pop()

    def _end(self, request: T, ending: Ending) -> None:
        """End `request` now, or mark it to end with the step it is in."""
        request.ending = request.ending or ending
        self._finish(request)

    @abstractmethod
    def _finish(self, request: T) -> None:
        """Emit the last output of `request`, whose `ending` is set; where a step in flight holds it, do nothing yet."""

    @abstractmethod
    def _validate(self, request: T) -> None:
        """Raise `InvalidRequestError` for what can never run."""
