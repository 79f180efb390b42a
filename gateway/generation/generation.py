"""One generation from admission to settlement: the service that ties routing, billing and engines together.

A supervised task owns the engine's stream, the hold and the settlement; whoever writes the answer to a client only
reads `Generation.events`. The task ends by itself, whatever its reader does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from enum import IntEnum
from functools import cached_property, partial
from typing import Any
from uuid import UUID

import msgspec
import structlog

from base.ids import moment_of
from billing.limits.types import BucketState, rate_headers
from billing.promises import Measured, measured
from billing.writer.operations import EndFacts, Release, Settle
from gateway.durable.delivery import Outcome, delivering
from gateway.errors import faults
from gateway.errors.refusal import Refusal
from gateway.generation.admission import Admitted, Rated, admit, check_dimensions
from gateway.generation.attempts import Attempts
from gateway.generation.credit import Hold
from gateway.generation.intent import Intent, Tier
from gateway.generation.items import EventBuffer, GenerationEvent
from gateway.generation.placement import Reach
from gateway.generation.settlement import (
    FIRST_TOKEN,
    Times,
    close_hold,
    closing,
    describe_charge,
    describe_engine_end,
    end_of,
    engine_span,
    report,
)
from gateway.runtime import tracing
from gateway.runtime.metrics import Metrics
from gateway.runtime.principals import Principal
from gateway.runtime.requests import Requests, own_queue
from gateway.runtime.runtime import Ledger, Runtime
from inference.errors import EngineError, UnpreparedError
from inference.types import (
    ANSWER_NOT_GUIDED,
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
    Kind,
    Prepared,
    Started,
    Usage,
    Vector,
)
from routing.types import Route

HEAD_SECONDS = 10.0  # an answer that was refused, or failed at once, has that status: wait so long for its first sign
CANCEL_SECONDS = 10.0  # seconds to wait for an engine that was told to stop

log = structlog.get_logger(__name__)


async def start_generation(runtime: Runtime, principal: Principal, intent: Intent, request_id: UUID) -> Generation:
    """Return the running generation of `intent`, its credit held and its rates taken.

    Waits in its tenant's queue while the plan's number of requests runs; whoever cancels this leaves it. Raise
    `Refusal` when it may not or can't run: then nothing is held, taken or charged.
    """
    arrived_at = asyncio.get_running_loop().time()
    times = Times(arrived_at)
    own_queue.set(times.note_waited)
    with tracing.span("admission"):
        await runtime.requests.gate.enter(principal, intent.size)
        try:
            if principal.batch is None:
                runtime.requests.pace.other_came()
                admitted = await admit(runtime, principal, intent, request_id, arrived_at)
            else:
                async with runtime.requests.pace.turn():
                    admitted = await admit(runtime, principal, intent, request_id, arrived_at)
        except BaseException:
            runtime.requests.gate.leave(principal)
            raise
    try:
        generation = Generation(admitted, times, runtime.requests, runtime.writer, runtime.metrics)
        generation.start()
    except BaseException:
        runtime.requests.gate.leave(principal)
        raise
    await generation.accepted()
    return generation


class Phase(IntEnum):
    """The progress of an answer."""

    WAITING = 0
    OPEN = 1  # its first token has come
    ENDING = 2  # its tenant's places are being freed
    ENDED = 3  # they are free, and its end can be read


class Opening:
    """The first sign of an answer, for which its client waits: a token, a refusal or the end."""

    def __init__(self) -> None:
        self.phase = Phase.WAITING
        self.refusal: Refusal | None = None
        self.is_model_told = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to read."""
        return self.phase in (Phase.OPEN, Phase.ENDED)

    async def sign(self, seconds: float | None) -> bool:
        """Wait for the first sign; False when none came within `seconds`."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self.is_open

    def wake(self) -> None:
        """End the wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stop:
    """The end that somebody asked for: why, and how long the engine may take for it."""

    def __init__(self) -> None:
        self.is_asked = False
        self.fault: EngineFault | None = None
        self._task: asyncio.Task[Any] | None = None  # while an engine has the request
        self._patience: asyncio.TimerHandle | None = None
        self._is_given_up = False

    def ask(self, fault: EngineFault | None) -> bool:
        """Note why it is to end, None: the client left. True when an engine has to be told."""
        self.is_asked = True
        self.fault = fault
        if self._task is None:
            return False
        self._patience = asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._give_up)
        return True

    async def within(self, work: Coroutine[Any, Any, Finished]) -> Finished | None:
        """Return the end that `work` returns; None when it wasn't there `CANCEL_SECONDS` after it was asked for."""
        task = self._task = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if not self._is_given_up or task is None or task.uncancel():
                raise
            return None
        finally:
            self._task = None
            if self._patience is not None:
                self._patience.cancel()

    def _give_up(self) -> None:
        if self._task is not None:
            self._is_given_up = self._task.cancel()


class Generation:
    """A request that runs: what is known of it, and its events."""

    def __init__(self, admitted: Admitted, times: Times, requests: Requests, ledger: Ledger, metrics: Metrics) -> None:
        self.lease_until = admitted.lease_until
        self._admitted = admitted  # its `prepared` changes with the model that it moves to
        self._requests = requests
        self._ledger = ledger
        self._metrics = metrics
        self._hold = Hold(
            admitted.id,
            admitted.principal.wallet,
            admitted.meter,
            ledger,
            admitted.principal.budgets.terms,
            tell=self._tell,
            lost=partial(self.cancel, faults.LEASE_LOST),
            supervise=requests.supervise,
        )
        self._attempts: Attempts | None = Attempts(  # None once it has ended
            admitted.id,
            admitted.prepared,
            admitted.placement,
            allowed=self._hold.permit,
            is_cancelled=lambda: self._stop.is_asked,
            reach=lambda: Reach.MODEL if self._opening.is_model_told else Reach.ANYWHERE,
            pinned=self._pinned,
            restart=self._hold.restart,
            supervise=requests.supervise,
        )
        self._buffer = EventBuffer()
        self._opening = Opening()
        self._stop = Stop()
        self._times = times
        self._delivery = delivering.get()

    @cached_property
    def id(self) -> UUID:
        """The request's id, which is its hold's too."""
        return self._admitted.id

    @cached_property
    def principal(self) -> Principal:
        """The principal that sent the request."""
        return self._admitted.principal

    @cached_property  # read for each token
    def intent(self) -> Intent:
        """The request."""
        return self._admitted.intent

    @cached_property  # read for each chunk
    def created(self) -> int:
        """When it came, in seconds."""
        return int(moment_of(self.id).timestamp())

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt where it runs: models count differently."""
        return self._admitted.prepared.prompt_tokens

    # -- for whoever writes the answer ----------------------------------------------------------------------------

    @property
    def route(self) -> Route:
        """The placement of the request."""
        return self._admitted.placement.route

    @property
    def rate_states(self) -> tuple[BucketState, ...]:
        """The tenant's buckets after this request was taken from them."""
        return self._admitted.limits.states

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its answer: the tenant's rates, and the route."""
        return {**dict(rate_headers(self.rate_states)), **self._admitted.placement.headers}

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The wishes of its request that change nothing, those that its engine leaves open last."""
        return tuple(dict.fromkeys((*self.intent.not_enforced, *self._admitted.prepared.not_enforced)))

    def explain(self) -> dict[str, object]:
        """Return where it runs and why, and where it was tried before."""
        return self._admitted.placement.explain()

    def charge_so_far(self, usage: Usage) -> int:
        """Return the µcr that `usage` costs under this request's rate card."""
        return self._hold.meter.charge(usage)

    @property
    def prompt_usage(self) -> Usage:
        """The prompt, and what of it came from the cache as far as that is known."""
        usage = self._hold.meter.usage
        return Usage(usage.input, usage.cache_read) if usage.prompt else Usage(self.prompt_tokens)

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Yield what happens, `Outcome` last: by then the charge is settled and the rates are given back."""
        while True:
            event = await self._buffer.get()
            yield event
            if isinstance(event, Outcome):
                return

    @property
    def ended_at_once(self) -> Outcome | None:
        """The outcome of a generation that has ended with nothing before it."""
        first = self._buffer.first
        return first if isinstance(first, Outcome) else None

    def client_left(self) -> None:
        """Stop the engine; what it generated until then is settled exactly."""
        self.cancel(None)

    # -- for the runtime ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run."""
        self._requests.entered(self)
        if self._delivery is not None:
            self._delivery.begun(self.id)
        self._requests.supervise(self._run())

    async def accepted(self) -> None:
        """Return at the end, of a stream at its first token, or after `HEAD_SECONDS`; raise the Refusal if nothing took
        it.

        From then on a stream's reader may know the model that answers.
        """
        opening = self._opening
        patience: float | None = HEAD_SECONDS
        try:
            while not opening.is_open:
                if await opening.sign(patience):
                    continue
                if opening.refusal is None:
                    break
                patience = None  # what was held is still being given back
        except asyncio.CancelledError:
            self.client_left()
            raise
        if opening.refusal is not None:
            opening.refusal.headers |= self._admitted.placement.headers
            raise opening.refusal
        opening.is_model_told = self.intent.stream

    def cancel(self, fault: EngineFault | None) -> None:
        """Stop the engine; `fault` says why, None that the client left."""
        if self._stop.is_asked or self._hold.is_closed:
            return
        if self._stop.ask(fault) and self._attempts is not None:
            self._requests.supervise(self._attempts.cancel())

    def checkpoint(self) -> Mapping[str, int]:
        """The classes that would be charged if this process died now."""
        return self._hold.meter.usage.classes()

    async def renew_limits(self) -> None:
        """Renew the concurrency lease."""
        if self._opening.phase < Phase.ENDING:
            await self._admitted.limits.renew()

    # -- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        outcome = Outcome(FinishReason.ERROR, Usage(), None, error=faults.INTERNAL)
        taken = Rated()
        finished: Finished | None = None
        try:
            with engine_span(self.id, self.principal.tenant, self.intent, self.route) as span:
                finished = await self._generate()
                self._times.note_end()
                if span is not None:
                    describe_engine_end(span, finished, self.route)
            self._hold.close()
            with tracing.span("settle") as span:
                taken, outcome = await self._settle(finished)
                if span is not None:
                    describe_charge(span, outcome)
        except Exception:
            # Nothing is known for sure: the hold is left to the sweep, which asks the engine.
            log.exception("generation_failed")
            used = self._hold.meter.usage
            taken = Rated.of(self._hold.meter.charge(used), used)
        finally:
            self._hold.close()
            self._attempts = None  # they refer back here: both would stay until the collector finds them
            self._requests.left(self)
            if self._delivery is not None:
                self._delivery.settled(self.id, outcome)
            await self._tell_end(outcome, taken)
        await asyncio.sleep(0)  # the reader, which was told just now, goes first
        report(self._metrics, self.route, outcome, finished)

    async def _generate(self) -> Finished:
        """Run the request on its engine and return its end, as far as that is known."""
        if self._stop.is_asked:
            return Finished(FinishReason.CANCELLED, Usage())
        finished = await self._stop.within(self._relay())
        if finished is None:
            log.warning("engine_silent_after_cancel")
            fault = self._stop.fault or faults.ENGINE_STOPPED
            return Finished(FinishReason.ERROR, self._hold.meter.usage, fault, exact=False)
        return finished

    async def _relay(self) -> Finished:
        """Pass the engines' events on and return the last; a refusal before the first ends the request unrun."""
        attempts = self._attempts
        assert attempts is not None, "it runs once"
        try:
            return await attempts.run(self._note)
        except EngineError as error:
            if not self._opening.is_open:
                may_have_run = attempts.may_have_run or error.may_have_run or isinstance(error, UnpreparedError)
                return self._refused(faults.refusal_of_engine(error), exact=not may_have_run)
            if isinstance(error, UnpreparedError):
                raise
            fault = EngineFault(error.code, error.message, retryable=True)
            return Finished(FinishReason.ERROR, self._hold.meter.usage, fault, exact=False)

    def _refused(self, refusal: Refusal, *, exact: bool = True) -> Finished:
        """Note that the engine didn't take the request: nothing ran, or (not `exact`) nobody knows."""
        self._opening.refusal = refusal
        fault = EngineFault(refusal.code, refusal.message, retryable=refusal.status == 503)
        return Finished(FinishReason.ERROR, Usage(), fault, exact=exact)

    def _note(self, event: Event) -> None:
        if isinstance(event, Delta):  # first, and without calls, since each token comes by
            self._hold.used(event.usage)
            if not self._times.has_first and (event.text or event.reasoning or event.calls):
                self._note_first()
        elif isinstance(event, Started):
            self._hold.started(event.cached_tokens)
        else:
            assert isinstance(event, Vector), "`Attempts.run` returns Finished; it is never noted"
            self._note_first()
            if (labelling := self._admitted.placement.labelling) is not None:
                event = labelling.answer(event, self.prompt_usage)
                self._hold.used(event.usage)
        self._buffer.put(event)
        if self._opening.phase is Phase.WAITING and not isinstance(
            event, Started
        ):  # it may move to another model until now
            self._opening.phase = Phase.OPEN
            if self.intent.stream:
                self._opening.wake()
        if self.intent.stream and self._buffer.is_overfull:  # nobody reads a whole answer before its end
            self.cancel(faults.READER_TOO_SLOW)

    def _note_first(self) -> None:
        if not self._times.has_first:
            self._times.note_first()
            tracing.event(FIRST_TOKEN)

    async def _tell(self, allowance: int, is_final: bool) -> None:
        """Tell the engine what it may generate."""
        if self._attempts is not None:
            await self._attempts.extend(allowance, is_final)

    async def _pinned(self, prepared: Prepared) -> Prepared:
        """Pin the hold to where the request moved; see `Hold.pin`."""
        placement = self._admitted.placement
        assert placement.flight is not None, "a request is pinned to where it is"
        check_dimensions(placement.flight.engine, self.intent)
        prepared = await self._hold.pin(placement, prepared)
        self._admitted = msgspec.structs.replace(self._admitted, prepared=prepared)
        return prepared

    # -- its end --------------------------------------------------------------------------------------------------

    async def _settle(self, finished: Finished) -> tuple[Rated, Outcome]:
        """Close the hold; return what to leave taken of the rates, and the outcome.

        The end of a kept answer is told before, as it will be settled once the answer is stored; one that can't be
        stored was not delivered.
        """
        reason, error, sluice_reason = end_of(
            finished, self._stop.fault, is_cancelled=self._stop.is_asked, short_of=self._hold.meter.short_of
        )
        is_ours = error is not None and error is not faults.READER_TOO_SLOW
        delivered = self._delivered(error) if is_ours else None
        kept = self._kept(finished, delivered, is_whole=reason is not FinishReason.CANCELLED and not error)
        facts = self._facts(error.code if error else sluice_reason or reason.value, kept)
        operation = self._closing(finished, facts, delivered=delivered)
        charge = operation.charge if isinstance(operation, Settle) else 0
        outcome = Outcome(
            reason,
            finished.usage if isinstance(operation, Settle) else Usage(),
            charge,
            sluice_reason=sluice_reason,
            error=error,
            is_waived=operation.facts.waived,
            ttft_ms=self._times.ttft_ms(),
            duration_ms=self._times.duration_ms(),
            stop=finished.stop,
            not_enforced=self._not_enforced(finished),
        )
        taken = Rated.of(charge, outcome.usage)
        if reason is FinishReason.CANCELLED and not (finished.exact or charge):
            # Of what may have run for nothing, only so much a minute.
            taken = Rated.of(self.charge_so_far(self.prompt_usage), self.prompt_usage)
        if self._delivery is not None:
            self._delivery.ended(self.id, operation, outcome)
            await self._tell_end(outcome, taken)
            is_stored = await self._delivery.is_stored()
            if is_stored is None:  # the sweep asks the database, once it answers
                self._metrics.settlements_deferred.inc()
                return taken, msgspec.structs.replace(outcome, charge=None)
            if not is_stored:
                operation = self._closing(finished, facts, delivered=Usage())
        answer = await close_hold(self._ledger, operation)
        if answer is None:
            self._metrics.settlements_deferred.inc()
            self._requests.unsettled(operation)
            return taken, msgspec.structs.replace(outcome, charge=None)
        if kept is not None:
            self._metrics.promised(self.principal.plan, kept)
        if isinstance(operation, Settle):
            self._metrics.settled(self.route.counted_as, operation.classes, charge)
        left = answer.posted - answer.held - answer.restricted
        return taken, msgspec.structs.replace(outcome, charge=answer.charge, available=left)

    def _not_enforced(self, finished: Finished) -> str:
        """Return what the answer was to be held to, where its engine found that it wasn't."""
        guidance = self.intent.sampling.guidance
        return guidance.kind.value if guidance is not None and ANSWER_NOT_GUIDED in finished.findings else ""

    def _closing(self, finished: Finished, facts: EndFacts, *, delivered: Usage | None) -> Settle | Release:
        return closing(
            self.id,
            self.principal.wallet,
            finished,
            delivered=delivered,
            is_estimate=finished.is_estimate and (delivered is None or bool(delivered.completion)),
            card=self._hold.meter.card,
            multiplier_bp=self._hold.meter.multiplier_bp,
            facts=facts,
        )

    def _delivered(self, error: EngineFault | None) -> Usage:
        """Return what of a failed answer was delivered to the client: of a kept one nothing, since it isn't stored.

        A kept stream whose own request made its end impossible is stored as it is: it has been read, and whoever wants
        text for nothing could ask for such an end.
        """
        is_stored = self._delivery is None or (error is not None and error.param is not None)
        return self._hold.meter.usage if self.intent.stream and is_stored else Usage()

    async def _tell_end(self, outcome: Outcome, taken: Rated) -> None:
        """Tell the reader the end, once the tenant's place is free and `taken` left taken of its rates."""
        if self._opening.phase >= Phase.ENDING:
            return
        self._opening.phase = Phase.ENDING
        self._admitted.placement.leave()
        try:
            if self._opening.refusal is not None:
                await self._admitted.limits.give_back()
            else:
                await self._admitted.limits.close(taken)
        finally:
            self._requests.gate.leave(self.principal)  # after its lease, which whoever comes next takes
            self._opening.phase = Phase.ENDED
            self._buffer.put(outcome)
            self._opening.wake()

    def _kept(self, finished: Finished, delivered: Usage | None, *, is_whole: bool) -> Measured | None:
        """Return how the request did by its plan's promise, None where that makes none."""
        promise, intent = self.principal.promise, self.intent
        if promise is None:
            return None
        if self.principal.batch is not None:
            return Measured(promise.version, "batch")
        if intent.tier is Tier.FLEX or intent.kind is not Kind.CHAT:
            return Measured(promise.version, "flex" if intent.tier is Tier.FLEX else "kind")
        usage = finished.usage if finished.usage.prompt else self.prompt_usage
        is_waived = delivered is not None and not delivered.completion
        is_whole = is_whole and not self._hold.was_short
        run = self._times.run(usage, intent.sampling.n, is_whole=is_whole, is_waived=is_waived)
        return measured(promise, run)

    def _facts(self, finish: str, kept: Measured | None) -> EndFacts:
        return EndFacts(
            finish[:40],
            ttft_ms=self._times.ttft_ms(),
            duration_ms=self._times.duration_ms(),
            route=self.explain() if self._admitted.placement.attempts else None,
            promise=kept,
        )
