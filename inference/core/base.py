"""The common base of the schedulers of a generating model and of an encoder."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from inference.core.bounds import StepBounds
from inference.core.fairness import Prices
from inference.core.output import Output, Stats
from inference.core.sequence import Ending
from inference.core.step import StepPlan, StepResult
from inference.core.waiting import YIELDED, WaitingQueue, Yielding
from inference.errors import InvalidRequestError, OverloadedError
from inference.types import EngineFault, FinishReason


class Scheduled(Yielding, Protocol):
    """A request. `in_flight` counts its rows in flight, it has `begun` with the first; `ending`: why it has to end."""

    begun: bool
    ending: Ending | None
    in_flight: int
    submitted_at: float

    @property
    def queue_seconds(self) -> float: ...

    @property
    def request_id(self) -> str: ...


T = TypeVar("T", bound=Scheduled)


@dataclass(frozen=True, slots=True)
class Flight(Generic[T]):
    """A step in flight: planned, and neither committed nor abandoned. `requests` has the request of each row."""

    plan: StepPlan
    requests: tuple[T, ...]
    launched_at: float


class BaseScheduler(ABC, Generic[T]):
    """Keeps requests from their submission to their last output. Subclasses choose the rows of a step.

    Belongs to one thread. Outputs come from `commit`, `abandon` and `take_outputs`; the last one of each submitted
    request, and no other, has `finished`. `clock` gives seconds from any fixed point. Steps are committed oldest first
    and abandoned newest first.
    """

    def __init__(self, waiting: WaitingQueue[T], bounds: StepBounds, clock: Callable[[], float]) -> None:
        self.waiting = waiting
        self.bounds = bounds
        self.clock = clock
        self.steps = 0
        self._live: dict[str, T] = {}
        self._flights: deque[Flight[T]] = deque()
        self._outputs: list[Output] = []
        self._submissions = 0
        self._landed_at = float("-inf")  # when the last step in flight ended
        self._queue_deadlines: list[tuple[float, int, T]] = []  # a heap; of requests that have begun as well

    # Requests --------------------------------------------------------------------------------------------------

    def submit(self, request: T, *, bounded: bool = True) -> None:
        """Queue `request`.

        Raise, without keeping it, `InvalidRequestError` when it can never run, `OverloadedError` when too many requests
        wait already, and `DrainingError` while draining; not `bounded` are parts of a request that was taken before.
        It may take the place of a waiting one of a tenant that has more of them, which ends with that error.
        """
        if request.request_id in self._live:
            raise InvalidRequestError(f"request {request.request_id} is here already")
        if request.weight < 1:
            raise InvalidRequestError("a tenant's weight is at least 1 thousandth")
        self._validate(request)
        yielding = self.waiting.enter(request, bounded=bounded)
        if yielding is not None:
            fault = EngineFault(OverloadedError.code, YIELDED, retryable=True)
            self._end(yielding, Ending(FinishReason.ERROR, error=fault))
        request.submitted_at = self.clock()
        self._live[request.request_id] = request
        if request.queue_seconds > 0:
            self._submissions += 1
            deadline = request.submitted_at + request.queue_seconds
            heapq.heappush(self._queue_deadlines, (deadline, self._submissions, request))

    @abstractmethod
    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Permit `allowance` output tokens in all (never fewer than before), with `is_final` for the last time."""

    def cancel(
        self,
        request_id: str,
        reason: FinishReason = FinishReason.CANCELLED,
        *,
        stop: str | None = None,
        error: EngineFault | None = None,
    ) -> None:
        """End a request for `reason`, without the tokens that it has in flight.

        At once; but when prompt tokens are in flight, with the commit that counts those.

        Stop strings end a request this way too (STOP, with `stop`), and text that can't be decoded (ERROR, with
        `error`). Ended and unknown requests: no effect; the first of several reasons counts.
        """
        request = self._live.get(request_id)
        if request is not None:
            self._end(request, Ending(reason, stop, error))

    def cancel_all(self, reason: FinishReason = FinishReason.CANCELLED, error: EngineFault | None = None) -> None:
        """End every request for `reason`."""
        for request_id in list(self._live):
            self.cancel(request_id, reason, error=error)

    def drain(self) -> None:
        """Take no new requests; submitted ones go on."""
        self.waiting.draining = True

    def reprice(self, prices: Prices) -> None:
        """Count service at `prices` from now on."""
        self.waiting.queue.prices = prices

    # Steps ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def plan(self) -> StepPlan | None:
        """Return the next step, or None when there is nothing to run.

        After None with no step in flight, only a call of `submit` or `extend`, or `next_deadline`, can bring work.
        After None with a step in flight, commit it and plan again.
        """

    @abstractmethod
    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        """Apply the result of `plan`, the oldest step in flight; return every output since the last call.

        Raise ValueError, having changed nothing, when `result` doesn't answer `plan` row by row.
        """

    @abstractmethod
    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]:
        """Undo `plan`, the newest step in flight, which failed as a whole; return every output since the last call.

        None of its tokens are published or charged. Its rows run again, each alone; one that fails alone as well ends
        with an error. After a MemoryError steps are smaller for a while first, and a row isn't given up before it has
        failed with one token. Of two steps in flight both are abandoned when the older one failed; the rows of the
        newer one aren't at fault.
        """

    def take_outputs(self) -> list[Output]:
        """Return the outputs since the last call, oldest first: of requests that ended outside a step."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_deadline(self) -> float | None:
        """The clock's time at which `plan` has to be called even if nothing is submitted; None: never."""
        deadlines = self._queue_deadlines
        while deadlines and not self._waits(deadlines[0][2]):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    @property
    def unfinished(self) -> int:
        """How many submitted requests have not ended."""
        return len(self._live)

    @property
    def in_flight(self) -> int:
        """How many steps were planned and neither committed nor abandoned."""
        return len(self._flights)

    @abstractmethod
    def stats(self) -> Stats:
        """Return the state now."""

    # For subclasses ---------------------------------------------------------------------------------------------

    def _launch(self, plan: StepPlan, requests: tuple[T, ...]) -> StepPlan:
        """Put `plan` in flight; `requests` are those of its rows."""
        self.steps += 1
        self._flights.append(Flight(plan, requests, self.clock()))
        return plan

    def _land(self) -> tuple[Flight[T], float]:
        """Take the oldest step, which has ended, out of flight; return it and the seconds that it took alone."""
        flight = self._flights.popleft()
        now = self.clock()
        seconds = now - max(flight.launched_at, self._landed_at)
        self._landed_at = now
        return flight, seconds

    def _expire_queue(self) -> None:
        """End the requests whose deadline in the queue is over."""
        now = self.clock()
        while (due := BaseScheduler.next_deadline(self)) is not None and due <= now:
            fault = EngineFault("queue_timeout", "the engine was busy for longer than this request may wait", True)
            self._end(self._queue_deadlines[0][2], Ending(FinishReason.ERROR, error=fault))

    def _waits(self, request: T) -> bool:
        """Whether `request` has neither begun nor ended."""
        return not request.begun and self._live.get(request.request_id) is request

    def _require_oldest(self, plan: StepPlan) -> None:
        if not self._flights or self._flights[0].plan is not plan:
            raise ValueError("only the oldest step in flight can be committed")

    @staticmethod
    def _fault(error: BaseException, what: str) -> EngineFault:
        """Return the fault of a request that failed in a step of its own."""
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
        """Emit the last output of `request`, whose `ending` is set; do nothing while it has a row in flight."""

    @abstractmethod
    def _validate(self, request: T) -> None:
        """Raise `InvalidRequestError` for what can never run."""
