"""The step thread: lets one deployment after the other run a step, and sends what each step brought.

    inbox → a step of the engine whose turn it is (begun requests are recorded) → record what ended → a frame a session

Deployments share the thread by time: of those with work, the one whose steps took least is next. One that was idle
comes back with what the lowest of the others took: it is served next, and idle time earns nothing. While several work,
the prompts of a step are bounded in time too. When none has work the thread waits for the inbox or the next deadline;
it never polls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Protocol

from inference.conversion import refusal_of
from inference.core.output import Output
from inference.errors import EngineError
from inference.local.engine import LocalEngine
from inference.protocol import (
    Batch,
    FromWorker,
    WireDelta,
    WireEvent,
    WireFinished,
    WireStarted,
    WireVector,
)
from inference.types import Finished, Health
from inference.worker.deployment import Deployment
from inference.worker.record import Record
from inference.worker.requests import (
    AddCommand,
    CancelCommand,
    Command,
    DrainCommand,
    ExtendCommand,
    RepriceCommand,
    Request,
    StopCommand,
    SubmitCommand,
)

TURN_SECONDS = 0.1  # the most that a step's prompts take while other deployments work
RECENTLY = 5.0  # seconds for which a deployment counts as one that works after its last step


class Outbox(Protocol):
    """Where the step thread puts messages for sessions."""

    def send(self, session: bytes, message: FromWorker) -> None: ...


@dataclass(slots=True)
class _Turns:
    """A deployment's use of the thread: the seconds of its steps, or more if it was idle."""

    spent: float
    worked_at: float = -math.inf  # when its last step ended
    last: int = 0  # the number of that step

    @property
    def order(self) -> tuple[float, int]:
        return self.spent, self.last


class StepLoop:
    """`registry` maps the ids of submitted, unfinished requests; the reader thread adds to it.

    `steps` counts the steps of all deployments; `health` is each deployment's last state; `busy_since` is when the
    current iteration began, None while the loop waits for work. Any thread may read them.
    """

    def __init__(
        self,
        *,
        record: Record,
        registry: dict[str, Request],
        inbox: SimpleQueue[Command],
        outbox: Outbox,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = 0
        self.health: dict[str, Health] = {}
        self.busy_since: float | None = None
        self._record = record
        self._registry = registry
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._deployments: list[Deployment] = []
        self._turns: dict[Deployment, _Turns] = {}
        self._drains: list[DrainCommand] = []
        self._removing: set[Deployment] = set()
        self._stopped = False

    def run(self) -> None:
        """Serve until a `StopCommand` comes. Whatever it raises ends the worker."""
        busy = False
        while not self._stopped:
            self._read_inbox(block=not busy)
            self.busy_since = self._clock()
            busy = self._take_turn()
            self._check_drains()

    # -- inbox --------------------------------------------------------------------------------------------------

    def _read_inbox(self, *, block: bool) -> None:
        with suppress(Empty):
            if block:
                self.busy_since = None
                self._execute(self._inbox.get(timeout=self._until_deadline()))
            while True:
                self._execute(self._inbox.get_nowait())

    def _until_deadline(self) -> float | None:
        deadlines = [drain.deadline for drain in self._drains]
        deadlines += [due for one in self._deployments if (due := one.engine.next_deadline()) is not None]
        return max(0.0, min(deadlines) - self._clock()) if deadlines else None

    def _execute(self, command: Command) -> None:
        match command:
            case SubmitCommand(request):
                self._submit(request)
            case ExtendCommand(request, allowance, is_final):
                request.deployment.engine.extend(request.id, allowance, is_final)
            case CancelCommand(requests):
                for request in requests:
                    request.deployment.engine.cancel(request.id)
            case DrainCommand():
                self._drain(command)
            case AddCommand(deployment):
                self._deployments.append(deployment)
                self._turns[deployment] = _Turns(min((each.spent for each in self._turns.values()), default=0.0))
                self.health[deployment.id] = deployment.health()
            case RepriceCommand(deployment, rates):
                deployment.engine.reprice(rates)
            case StopCommand():
                self._stopped = True

    def _drain(self, command: DrainCommand) -> None:
        deployments = tuple(self._deployments) if command.deployments is None else command.deployments
        for deployment in deployments:
            deployment.engine.drain()
        if command.remove:
            self._removing.update(deployments)
            staying = {deployment.id for deployment in self._deployments if deployment not in self._removing}
            for deployment in deployments:
                if deployment.id not in staying:
                    self.health.pop(deployment.id, None)
        self._drains.append(replace(command, deployments=deployments))

    def _submit(self, request: Request) -> None:
        try:
            request.deployment.engine.submit(request.prompt, request.allowance, request.is_final)
        except EngineError as error:
            del self._registry[request.id]
            self._outbox.send(request.session, refusal_of(error, request_id=request.id))

    def _check_drains(self) -> None:
        now = self._clock()
        for drain in list(self._drains):
            deployments = drain.deployments or ()
            if drain.deadline <= now:
                for deployment in deployments:
                    deployment.engine.cancel_all()
                    self._send_outputs(deployment.engine.take_outputs())
            if not any(deployment.engine.unfinished for deployment in deployments):
                self._drains.remove(drain)
                if drain.remove:
                    self._removing.difference_update(deployments)
                    self._deployments = [each for each in self._deployments if each not in deployments]
                    self._turns = {each: self._turns[each] for each in self._deployments}
                drain.done()

    # -- steps --------------------------------------------------------------------------------------------------

    def _take_turn(self) -> bool:
        """Run a step of the deployment whose turn it is; False when none has work."""
        idle: list[_Turns] = []
        for deployment in sorted(self._deployments, key=lambda each: self._turns[each].order):
            turns, began = self._turns[deployment], self._clock()
            others = (each for each in self._turns.values() if each is not turns)
            shares = any(began - each.worked_at < RECENTLY for each in others)
            deployment.engine.bound_prompts(TURN_SECONDS if shares else math.inf)
            has_worked = self._step(deployment.engine)
            if deployment not in self._removing:
                self.health[deployment.id] = deployment.health()
            if has_worked:
                for each in idle:
                    each.spent = max(each.spent, turns.spent)
                turns.worked_at = self._clock()
                turns.spent += turns.worked_at - began
                turns.last = self.steps
                return True
            idle.append(turns)
        return False

    def _step(self, engine: LocalEngine) -> bool:
        """Run one step of `engine`; False when there was nothing to run."""
        before = engine.steps
        outputs = engine.step(self._begin)
        self.steps += engine.steps - before
        self._send_outputs(outputs)
        return engine.steps != before or bool(outputs)

    def _begin(self, request_ids: Sequence[str]) -> None:
        self._record.begin(request_ids)
        for request_id in request_ids:
            self._registry[request_id].begun = True

    def _send_outputs(self, outputs: Sequence[Output]) -> None:
        """Record every end, and only then send the outputs as events, in one frame for each session."""
        batches: dict[bytes, list[WireEvent]] = {}
        ended: dict[str, Finished] = {}
        for output in outputs:
            request = self._registry[output.request_id]
            request.usage = output.usage
            events = batches.setdefault(request.session, [])
            if output.started is not None:
                events.append(WireStarted(request.id, output.started.cached_tokens, output.started.seed))
            events.extend(WireVector(request.id, vector.index, vector.data, vector.labels) for vector in output.vectors)
            if output.told:
                events.extend(_told(request.id, output))
            elif output.has_delta:
                events.append(_delta(request.id, output))
            if output.finished is not None:
                ended[request.id] = output.finished
                events.append(WireFinished(request.id, output.finished))
        if ended:
            self._record.finish(ended)
            for request_id in ended:
                del self._registry[request_id]
        for session, events in batches.items():
            if events:
                self._outbox.send(session, Batch(events))


def _told(request_id: str, output: Output) -> list[WireDelta]:
    """Return a Delta for each piece of an answer that is parsed: the tokens are the first one's, its end the last's."""
    usage, last = output.usage, len(output.told) - 1
    return [
        WireDelta(
            request_id,
            told.text,
            usage.input,
            usage.cache_read,
            usage.output,
            usage.reasoning,
            () if number else output.tokens,
            output.index,
            output.ended if number == last else None,
            () if number else output.logprobs,
            () if number else output.prompt_logprobs,
            told.reasoning,
            told.calls,
            output.stop if number == last else None,
        )
        for number, told in enumerate(output.told)
    ]


def _delta(request_id: str, output: Output) -> WireDelta:
    usage = output.usage
    return WireDelta(
        request_id,
        output.text,
        usage.input,
        usage.cache_read,
        usage.output,
        usage.reasoning,
        output.tokens,
        output.index,
        output.ended,
        output.logprobs,
        output.prompt_logprobs,
        stop=output.stop,
    )
