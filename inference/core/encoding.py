"""The scheduler of an encoder: whole inputs, no KV blocks, the same fairness between tenants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.config import EngineConfig
from inference.core.fairness import Prices
from inference.core.output import Output, Stats
from inference.core.sequence import Ending
from inference.core.step import EncodeRow, RowFailure, StepPlan, StepResult
from inference.core.waiting import WaitingRoom
from inference.errors import InvalidRequestError
from inference.types import EngineFault, Finished, FinishReason, Started, Usage, Vector


@dataclass(frozen=True, slots=True)
class EncodeConfig:
    """The bounds within which an `EncodeScheduler` plans. An input longer than a step's budget runs alone."""

    max_input: int
    vocab_size: int
    max_rows: int = 32
    max_step_tokens: int = 512
    max_waiting: int = 256
    max_waiting_per_tenant: int = 64
    prices: Prices = field(default_factory=Prices)

    @classmethod
    def of(cls, engine: EngineConfig, *, max_input: int, vocab_size: int) -> EncodeConfig:
        """Return the bounds of `engine` with what only the loaded model knows."""
        return cls(
            max_input=max_input,
            vocab_size=vocab_size,
            max_rows=engine.max_rows,
            max_step_tokens=engine.max_step_tokens,
            max_waiting=engine.max_waiting,
            max_waiting_per_tenant=engine.max_waiting_per_tenant,
        )


@dataclass(slots=True, eq=False)
class EncodeJob:
    """An embedding request: what the worker submits, and what the scheduler knows about it (from `planned` on)."""

    request_id: str
    tenant: str
    inputs: tuple[tuple[int, ...], ...]
    weight: int = 1000

    planned: int = 0  # inputs taken from the front
    left: int = field(init=False)  # inputs without a vector
    computed: int = 0  # tokens
    in_flight: int = 0
    begun: bool = False
    started: bool = False
    ending: Ending | None = None
    submitted_at: float = 0.0
    begun_at: float | None = None

    def __post_init__(self) -> None:
        self.left = len(self.inputs)

    @property
    def usage(self) -> Usage:
        return Usage(input=self.computed)


@dataclass(frozen=True, slots=True)
class _Flight:
    plan: StepPlan
    jobs: tuple[EncodeJob, ...]
    alone: bool


class EncodeScheduler:
    """Plans the steps of one encoder, with the calls and promises of `Scheduler`.

    Tenants take turns input by input, so a request with a thousand inputs doesn't hold up the others. Inputs of a
    failed step run again, each alone; one that fails alone as well ends its request with an error.
    """

    def __init__(self, config: EncodeConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self.clock = clock
        self.room: WaitingRoom[EncodeJob] = WaitingRoom(
            config.max_waiting, config.max_waiting_per_tenant, config.prices
        )
        self.steps = 0
        self._live: dict[str, EncodeJob] = {}
        self._retries: deque[tuple[EncodeJob, int]] = deque()
        self._flights: deque[_Flight] = deque()
        self._outputs: list[Output] = []

    def submit(self, job: EncodeJob) -> None:
        """Let `job` wait for its turn; raise as `Scheduler.submit` does."""
        self._validate(job)
        self.room.enter(job)
        job.submitted_at = self.clock()
        self._live[job.request_id] = job

    def extend(self, request_id: str, allowance: int, last: bool) -> None:
        """No effect: an embedding has no output tokens."""

    def cancel(
        self,
        request_id: str,
        reason: FinishReason = FinishReason.CANCELLED,
        *,
        stop: str | None = None,
        error: EngineFault | None = None,
    ) -> None:
        """End a request: at once, or when the step in flight is committed. Ended and unknown requests: no effect."""
        job = self._live.get(request_id)
        if job is not None:
            self._end(job, Ending(reason, stop, error))

    def cancel_all(self, reason: FinishReason = FinishReason.CANCELLED, error: EngineFault | None = None) -> None:
        """Cancel everything, as at a drain's deadline."""
        for request_id in list(self._live):
            self.cancel(request_id, reason, error=error)

    def drain(self) -> None:
        """Take no new requests; those here go on."""
        self.room.draining = True

    def plan(self) -> StepPlan | None:
        """Return the next step, or None when there is nothing to run until a submit or a commit."""
        rows: list[tuple[EncodeJob, int]] = []
        alone = bool(self._retries)
        if alone and not self._flights:
            rows.append(self._retries.popleft())
        elif not alone:
            rows = self._choose_rows()
        if not rows:
            return None
        begins: list[str] = []
        for job, _ in rows:
            job.in_flight += 1
            if not job.begun:
                job.begun = True
                job.begun_at = self.clock()
                begins.append(job.request_id)
        encodes = tuple(EncodeRow(job.request_id, index, job.inputs[index]) for job, index in rows)
        plan = StepPlan(number=self.steps, encodes=encodes, begins=tuple(begins))
        self.steps += 1
        self._flights.append(_Flight(plan, tuple(job for job, _ in rows), alone))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        """Take in the vectors of `plan`, the oldest step in flight; return every output since the last call.

        Raise ValueError, having changed nothing, when `result` doesn't answer `plan` row by row.
        """
        if not self._flights or self._flights[0].plan is not plan:
            raise ValueError("only the oldest step in flight can be committed")
        if len(result.vectors) != len(plan.encodes):
            raise ValueError(f"step {plan.number}: {len(result.vectors)} answers for {len(plan.encodes)} inputs")
        flight = self._flights.popleft()
        made: dict[EncodeJob, list[Vector]] = {}
        for job, row, vector in zip(flight.jobs, plan.encodes, result.vectors, strict=True):
            job.in_flight -= 1
            vectors = made.setdefault(job, [])
            if isinstance(vector, RowFailure):
                job.ending = job.ending or Ending(FinishReason.ERROR, error=EngineFault(vector.code, vector.message))
                continue
            job.computed += len(row.ids)
            job.left -= 1
            if job.ending is None:
                vectors.append(Vector(row.index, vector))
        for job, vectors in made.items():
            if not job.left:
                job.ending = job.ending or Ending(FinishReason.STOP)
            if job.ending is not None:
                self._finish(job, tuple(vectors))
            else:
                self._say(job, tuple(vectors))
        return self.take_outputs()

    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]:
        """Forget `plan`, the newest step in flight, which failed as a whole; its inputs run again, each alone."""
        if not self._flights or self._flights[-1].plan is not plan:
            raise ValueError("only the newest step in flight can be abandoned")
        flight = self._flights.pop()
        for job, row in zip(flight.jobs, plan.encodes, strict=True):
            job.in_flight -= 1
            if flight.alone:
                fault = EngineFault("step_failed", f"the model failed on this input twice ({type(error).__name__})")
                job.ending = job.ending or Ending(FinishReason.ERROR, error=fault)
            if job.ending is None:
                self._retries.append((job, row.index))
        for job in dict.fromkeys(flight.jobs):
            if job.ending is not None:
                self._finish(job)
        return self.take_outputs()

    def take_outputs(self) -> list[Output]:
        """Return what was said since the last call, oldest first."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_deadline(self) -> float | None:
        """None: nothing here waits for the clock."""
        return None

    @property
    def unfinished(self) -> int:
        """How many requests still owe their last output."""
        return len(self._live)

    @property
    def in_flight(self) -> int:
        """How many steps were planned and neither committed nor abandoned."""
        return len(self._flights)

    def stats(self) -> Stats:
        """The state now: a request runs from its first input's step on."""
        running = sum(job.begun for job in self._live.values())
        return Stats(running=running, waiting=len(self._live) - running, steps=self.steps)

    def _choose_rows(self) -> list[tuple[EncodeJob, int]]:
        rows: list[tuple[EncodeJob, int]] = []
        left = self.config.max_step_tokens
        while len(rows) < self.config.max_rows and (job := self.room.queue.peek()) is not None:
            tokens = len(job.inputs[job.planned])
            if rows and tokens > left:
                break
            rows.append((job, job.planned))
            left -= tokens
            self.room.queue.charge(job.tenant, prompt=tokens)
            job.planned += 1
            if job.planned == len(job.inputs):
                self.room.queue.remove(job)
        return rows

    def _end(self, job: EncodeJob, ending: Ending) -> None:
        job.ending = job.ending or ending
        self._finish(job)

    def _finish(self, job: EncodeJob, vectors: tuple[Vector, ...] = ()) -> None:
        self.room.queue.remove(job)
        if any(other is job for other, _ in self._retries):
            self._retries = deque(retry for retry in self._retries if retry[0] is not job)
        if job.in_flight:
            if vectors:
                self._say(job, vectors)
            return
        assert job.ending is not None
        del self._live[job.request_id]
        now = self.clock()
        begun = job.begun_at if job.begun_at is not None else now
        self._say(
            job,
            vectors,
            Finished(
                reason=job.ending.reason,
                usage=job.usage,
                error=job.ending.error,
                stop=job.ending.stop,
                queued_ms=(begun - job.submitted_at) * 1000,
                prefill_ms=(now - begun) * 1000,
            ),
        )
        self.room.leave(job)

    def _say(self, job: EncodeJob, vectors: tuple[Vector, ...], finished: Finished | None = None) -> None:
        started = None
        if not job.started and job.computed:
            job.started = True
            started = Started(0)
        self._outputs.append(Output(job.request_id, job.usage, started, vectors=vectors, finished=finished))

    def _validate(self, job: EncodeJob) -> None:
        if job.request_id in self._live:
            raise InvalidRequestError(f"request {job.request_id} is here already")
        if not job.inputs:
            raise InvalidRequestError("there is no input", param="input")
        if job.weight < 1:
            raise InvalidRequestError("a tenant's weight is at least 1 thousandth")
        for index, ids in enumerate(job.inputs):
            if not 1 <= len(ids) <= self.config.max_input:
                raise InvalidRequestError(
                    f"input {index} has {len(ids)} tokens; the model takes 1 to {self.config.max_input}",
                    code="context_length_exceeded",
                    param="input",
                )
            if min(ids) < 0 or max(ids) >= self.config.vocab_size:
                raise InvalidRequestError(f"input {index} has a token outside the vocabulary", param="input")
