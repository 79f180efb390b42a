"""The step thread: takes the deployments in turn, one step each, and says what each step brought.

    inbox → plan → record what begins → run → commit → text and stop strings → record what ended → one frame a session

When no deployment has work it waits for the inbox or the next deadline; it never polls. A step that raises is
abandoned: its rows run again, each alone, and one that fails alone ends with an error while the others go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol

from inference.core.output import Output
from inference.errors import EngineError
from inference.protocol import (
    Batch,
    FromWorker,
    WireDelta,
    WireEvent,
    WireFinished,
    WireStarted,
    WireVector,
    refusal_of,
)
from inference.text.stream import TextStream
from inference.types import EngineFault, Finished, FinishReason, Health, Kind
from inference.worker.deployment import Deployment, Scheduling
from inference.worker.record import Record
from inference.worker.requests import (
    AddCommand,
    CancelCommand,
    Command,
    DrainCommand,
    ExtendCommand,
    Request,
    StopCommand,
    SubmitCommand,
)

log = logging.getLogger(__name__)


class Outbox(Protocol):
    """Where the step thread leaves what is to be sent."""

    def send(self, session: bytes, message: FromWorker) -> None: ...


class StepLoop:
    """See the module. `registry` maps the ids of submitted, unfinished requests; the reader thread adds to it.

    `steps` counts steps of all deployments; `health` holds each deployment's last state. Both may be read anywhere.
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
        self._record = record
        self._registry = registry
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._deployments: list[Deployment] = []
        self._drains: list[DrainCommand] = []
        self._stopped = False

    def run(self) -> None:
        """Serve until a `StopCommand` comes. What it raises ends the worker: its record or itself is broken."""
        busy = False
        while not self._stopped:
            self._read_inbox(block=not busy)
            busy = False
            for deployment in self._deployments:
                for scheduler in deployment.schedulers:
                    busy = self._step(deployment, scheduler) or busy
                self.health[deployment.id] = deployment.health()
            self._check_drains()

    # -- inbox --------------------------------------------------------------------------------------------------

    def _read_inbox(self, *, block: bool) -> None:
        with suppress(Empty):
            if block:
                self._obey(self._inbox.get(timeout=self._until_deadline()))
            while True:
                self._obey(self._inbox.get_nowait())

    def _until_deadline(self) -> float | None:
        deadlines = [drain.deadline for drain in self._drains]
        for deployment in self._deployments:
            deadlines += [due for scheduler in deployment.schedulers if (due := scheduler.next_deadline()) is not None]
        return max(0.0, min(deadlines) - self._clock()) if deadlines else None

    def _obey(self, command: Command) -> None:  # noqa: C901  one arm per command
        match command:
            case SubmitCommand(request):
                self._submit(request)
            case ExtendCommand(request, allowance, is_final):
                if request.scheduler is not None:
                    request.scheduler.extend(request.id, allowance, is_final)
            case CancelCommand(requests):
                for request in requests:
                    if request.scheduler is not None:
                        request.scheduler.cancel(request.id)
            case DrainCommand():
                for deployment in command.deployments:
                    deployment.draining = True
                    for scheduler in deployment.schedulers:
                        scheduler.drain()
                self._drains.append(command)
            case AddCommand(deployment):
                self._deployments.append(deployment)
                self.health[deployment.id] = deployment.health()
            case StopCommand():
                self._stopped = True

    def _submit(self, request: Request) -> None:
        if request.prompt.request.kind is Kind.CHAT:
            stop = request.prompt.request.sampling.stop
            request.text = TextStream(request.deployment.tokenizer.decode, request.prompt.ids, stop)
        try:
            request.scheduler = request.deployment.submit(request.prompt, request.allowance, request.is_final)
        except EngineError as error:
            del self._registry[request.id]
            self._outbox.send(request.session, refusal_of(error, request_id=request.id))

    def _check_drains(self) -> None:
        now = self._clock()
        for drain in list(self._drains):
            schedulers = [scheduler for deployment in drain.deployments for scheduler in deployment.schedulers]
            if drain.deadline <= now:
                for deployment in drain.deployments:
                    for scheduler in deployment.schedulers:
                        scheduler.cancel_all()
                        self._say(deployment, scheduler, scheduler.take_outputs())
            if not any(scheduler.unfinished for scheduler in schedulers):
                self._drains.remove(drain)
                drain.done()

    # -- steps --------------------------------------------------------------------------------------------------

    def _step(self, deployment: Deployment, scheduler: Scheduling) -> bool:
        """Make one step; False when there was nothing to run."""
        plan = scheduler.plan()
        if plan is None:
            outputs = scheduler.take_outputs()
            self._say(deployment, scheduler, outputs)
            return bool(outputs)
        if plan.begins:
            self._record.begin(plan.begins)
            for request_id in plan.begins:
                self._registry[request_id].begun = True
        try:
            result = deployment.model.runner.launch(plan).wait()
            outputs = scheduler.commit(plan, result)
        except Exception as error:
            log.exception("step of %s failed with %d rows", deployment.id, len(plan.rows) + len(plan.encodes))
            outputs = scheduler.abandon(plan, error)
        self.steps += 1
        deployment.steps += 1
        self._say(deployment, scheduler, outputs)
        return True

    def _say(self, deployment: Deployment, scheduler: Scheduling, outputs: Iterable[Output]) -> None:
        """Turn outputs into events, record every end, and only then send one frame to each session."""
        batches: dict[bytes, list[WireEvent]] = {}
        ended: dict[str, Finished] = {}
        pending = list(outputs)
        while pending:
            for output in pending:
                request = self._registry[output.request_id]
                events = batches.setdefault(request.session, [])
                finished = self._events(request, scheduler, output, events)
                if finished is not None:
                    ended[request.id] = finished
                    events.append(WireFinished(request.id, finished))
            # A stop string or a failing text cancels its request: those endings belong to this step's frame.
            pending = scheduler.take_outputs()
        if ended:
            self._record.finish(ended)
            for request_id in ended:
                del self._registry[request_id]
        for session, events in batches.items():
            if events:
                self._outbox.send(session, Batch(events))

    def _events(
        self, request: Request, scheduler: Scheduling, output: Output, events: list[WireEvent]
    ) -> Finished | None:
        """Append what `output` means to `events`; return the end of the request if this is it."""
        request.usage = output.usage
        if output.started is not None:
            events.append(WireStarted(request.id, output.started.cached_tokens))
        events.extend(WireVector(request.id, vector.index, vector.data) for vector in output.vectors)
        finished = output.finished
        text = ""
        stream = request.text
        if stream is not None:
            already = stream.matched
            try:
                text = stream.push(output.tokens)
                if finished is not None and already is None and stream.matched is None:
                    text += stream.finish()
            except Exception as error:
                log.exception("text of a request of %s failed", request.deployment.id)
                fault = EngineFault("text_failed", f"the answer can't be decoded ({type(error).__name__})")
                if finished is None:
                    scheduler.cancel(request.id, FinishReason.ERROR, error=fault)
                else:
                    finished = replace(finished, reason=FinishReason.ERROR, error=fault, stop=None)
            if stream.matched is not None and already is None:
                if finished is None:
                    scheduler.cancel(request.id, FinishReason.STOP, stop=stream.matched)
                elif finished.reason in {FinishReason.LENGTH, FinishReason.ALLOWANCE, FinishReason.STOP}:
                    finished = replace(finished, reason=FinishReason.STOP, stop=stream.matched)
        if text or output.tokens:
            usage = output.usage
            events.append(WireDelta(request.id, text, usage.input, usage.cache_read, usage.output, usage.reasoning))
        return finished
