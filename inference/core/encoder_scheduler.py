"""The scheduler of an encoder: rows are whole inputs, without KV blocks, with the same fairness between tenants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.core.base import BaseScheduler
from inference.core.bounds import StepBounds
from inference.core.fairness import Prices
from inference.core.load import Load
from inference.core.output import Output, Stats
from inference.core.sequence import Ending
from inference.core.step import EncodeRow, RowFailure, StepPlan, StepResult
from inference.core.waiting import WaitingQueue
from inference.errors import InvalidRequestError
from inference.labels import LabelSet
from inference.types import EngineFault, Finished, FinishReason, Started, Usage, Vector


@dataclass(slots=True, eq=False)
class EncodeTask:
    """An embedding or score request or a classification; `seconds` are those of its pairs (`EncodeRow.second`).

    `labels` are a classification's. They are computed, and count, with the first input.

    The fields from `planned` on are the scheduler's.
    """

    request_id: str
    tenant: str
    inputs: tuple[tuple[int, ...], ...]
    weight: int = 1000
    band: int = 0
    priority: int = 0
    queue_seconds: float = 0.0
    seconds: tuple[int, ...] = ()
    labels: LabelSet | None = None

    planned: int = 0  # inputs that a step had, from the first on
    remaining: int = field(init=False)  # inputs that are not computed yet
    computed: int = 0  # input tokens
    in_flight: int = 0
    begun: bool = False
    started: bool = False
    ending: Ending | None = None
    submitted_at: float = 0.0
    begun_at: float | None = None

    def __post_init__(self) -> None:
        self.remaining = len(self.inputs)

    @property
    def may_yield(self) -> bool:
        """Whether it may be refused though it waits: no step had anything of it."""
        return not self.begun

    @property
    def usage(self) -> Usage:
        """The tokens of the computed inputs."""
        return Usage(input=self.computed)

    def tokens(self, index: int) -> int:
        """Return how many tokens input number `index` counts."""
        return len(self.inputs[index]) + (self.labels.tokens if self.labels is not None and index == 0 else 0)


class EncodeScheduler(BaseScheduler[EncodeTask]):
    """Plans the steps of one encoder.

    Tenants take turns input by input, so a request with a thousand inputs doesn't delay others. Inputs of a failed step
    run again, each alone; one that fails alone as well ends its request with an error. An input longer than
    `max_step_tokens` has a step of its own. Lengths and ids were checked when the request was prepared.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_step_tokens: int,
        max_waiting: int,
        max_waiting_per_tenant: int,
        clock: Callable[[], float],
        prices: Prices | None = None,
    ) -> None:
        waiting: WaitingQueue[EncodeTask] = WaitingQueue(max_waiting, max_waiting_per_tenant, prices or Prices())
        super().__init__(waiting, StepBounds(max_rows, max_step_tokens), clock)
        self._retries: deque[tuple[EncodeTask, int]] = deque()
        self._load = Load()
        self._retried: StepPlan | None = None  # the last step that repeated one input alone

    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Do nothing: an embedding has no output tokens."""

    def plan(self) -> StepPlan | None:
        self._expire_queue()
        rows: list[tuple[EncodeTask, int]] = []
        alone = bool(self._retries)
        if alone and not self._flights:
            rows.append(self._retries.popleft())
        elif not alone:
            rows = self._choose_rows()
        if not rows:
            return None
        begins: list[str] = []
        for task, _ in rows:
            task.in_flight += 1
            if not task.begun:
                task.begun = True
                task.begun_at = self.clock()
                self._load.queued.add(task.begun_at - task.submitted_at)
                begins.append(task.request_id)
        encodes = tuple(
            EncodeRow(
                task.request_id, index, task.inputs[index], task.seconds[index] if task.seconds else 0, task.labels
            )
            for task, index in rows
        )
        plan = StepPlan(number=self.steps, encodes=encodes, begins=tuple(begins))
        if alone:
            self._retried = plan
        return self._launch(plan, tuple(task for task, _ in rows))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        self._require_oldest(plan)
        if len(result.vectors) != len(plan.encodes):
            raise ValueError(f"step {plan.number}: {len(result.vectors)} answers for {len(plan.encodes)} inputs")
        flight, seconds = self._land()
        if plan is not self._retried:  # one input alone doesn't tell whether several fit
            self.bounds.note_success()
        counts: dict[str, int] = {}
        for task, row in zip(flight.requests, plan.encodes, strict=True):
            counts[task.tenant] = counts.get(task.tenant, 0) + len(row.ids)
        self._load.add_step(len(plan.encodes), counts, seconds, seconds)
        made: dict[EncodeTask, list[Vector]] = {}
        for task, row, vector in zip(flight.requests, plan.encodes, result.vectors, strict=True):
            task.in_flight -= 1
            vectors = made.setdefault(task, [])
            if isinstance(vector, RowFailure):
                fault = EngineFault(vector.code, vector.message, param=vector.param)
                task.ending = task.ending or Ending(FinishReason.ERROR, error=fault)
                continue
            tokens = task.tokens(row.index)
            task.computed += tokens
            self._load.prompt_tokens += tokens
            task.remaining -= 1
            if task.ending is None:
                vectors.append(Vector(row.index, vector, task.labels.names if task.labels is not None else ()))
        for task, vectors in made.items():
            if not task.remaining:
                task.ending = task.ending or Ending(FinishReason.STOP)
            if task.ending is not None:
                self._finish(task, tuple(vectors))
            else:
                self._emit(task, tuple(vectors))
        return self.take_outputs()

    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]:
        flight = self._take_newest(plan)
        if isinstance(error, MemoryError):
            if plan is self._retried:
                self.bounds.restore()
            else:
                self.bounds.shrink(plan)
        for task, row in zip(flight.requests, plan.encodes, strict=True):
            task.in_flight -= 1
            if plan is self._retried:
                task.ending = task.ending or Ending(FinishReason.ERROR, error=self._fault(error, "input"))
            if task.ending is None:
                self._retries.append((task, row.index))
        for task in dict.fromkeys(flight.requests):
            if task.ending is not None:
                self._finish(task)
        return self.take_outputs()

    def stats(self) -> Stats:
        """Return the state now; a request is running from the step of its first input on."""
        running = sum(task.begun for task in self._live.values())
        return Stats(running=running, waiting=len(self._live) - running, steps=self.steps, work=self._load.report({}))

    def _choose_rows(self) -> list[tuple[EncodeTask, int]]:
        rows: list[tuple[EncodeTask, int]] = []
        budget = self.bounds.tokens
        while len(rows) < self.bounds.rows and (task := self.waiting.queue.peek()) is not None:
            tokens = task.tokens(task.planned)
            if rows and tokens > budget:
                break
            rows.append((task, task.planned))
            budget -= tokens
            self.waiting.queue.charge(task.tenant, prompt=tokens)
            task.planned += 1
            if task.planned == len(task.inputs):
                self.waiting.queue.remove(task)
        return rows

    def _finish(self, task: EncodeTask, vectors: tuple[Vector, ...] = ()) -> None:
        self.waiting.queue.remove(task)
        if any(other is task for other, _ in self._retries):
            self._retries = deque(retry for retry in self._retries if retry[0] is not task)
        if task.in_flight:
            if vectors:
                self._emit(task, vectors)
            return
        assert task.ending is not None
        del self._live[task.request_id]
        task.labels = None  # what the model keeps for them goes now; the queue remembers the newest tasks for longer
        now = self.clock()
        begun = task.begun_at if task.begun_at is not None else now
        if not task.begun:
            self._load.queued.add(now - task.submitted_at)
        self._emit(
            task,
            vectors,
            Finished(
                reason=task.ending.reason,
                usage=task.usage,
                error=task.ending.error,
                stop=task.ending.stop,
                queued_ms=(begun - task.submitted_at) * 1000,
                prefill_ms=(now - begun) * 1000,
            ),
        )
        self.waiting.leave(task)

    def _emit(self, task: EncodeTask, vectors: tuple[Vector, ...], finished: Finished | None = None) -> None:
        started = None
        if not task.started and task.computed:
            task.started = True
            started = Started(0)
        self._outputs.append(Output(task.request_id, task.usage, started, vectors=vectors, finished=finished))

    def _validate(self, task: EncodeTask) -> None:
        if not task.inputs:
            raise InvalidRequestError("there is no input", param="input")
        if not all(task.inputs):
            raise InvalidRequestError("an input is empty", param="input")
