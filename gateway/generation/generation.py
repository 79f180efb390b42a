"""One generation from admission to settlement: the service that ties routing, billing and engines together.

A supervised task owns the engine's stream, the hold and the settlement; whoever writes the answer to a client only
reads `Generation.events`. The task ends by itself, whatever its reader does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import structlog

from base.ids import moment_of
from billing.limits.headers import rate_headers
from billing.limits.types import BucketState
from billing.writer.operations import EndFacts, Release, Settle
from gateway.concurrency.limiter import ConcurrencyLimiter
from gateway.durable.delivery import delivering
from gateway.durable.outcome import Outcome
from gateway.errors import faults
from gateway.errors.refusal import Refusal
from gateway.generation import spans
from gateway.generation.admission import Admitted, admit, check_dimensions
from gateway.generation.attempts import Attempts
from gateway.generation.events import EventBuffer, GenerationEvent
from gateway.generation.hold import Hold
from gateway.generation.intent import Intent
from gateway.generation.placement import Reach
from gateway.generation.report import Times, report
from gateway.generation.settlement import close_hold, closing, end_of
from gateway.runtime import tracing
from gateway.runtime.metrics import Metrics
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Ledger, Running, Runtime
from inference.errors import EngineError, UnpreparedError
from inference.types import (
    ANSWER_NOT_GUIDED,
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
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
    with tracing.span("admission"):
        await runtime.gate.enter(principal, intent.size)
        try:
            if principal.batch is None:
                runtime.pace.other_came()
                admitted = await admit(runtime, principal, intent, request_id, arrived_at)
            else:
                async with runtime.pace.turn():
                    admitted = await admit(runtime, principal, intent, request_id, arrived_at)
        except BaseException:
            runtime.gate.leave(principal)
            raise
    try:
        generation = Generation(
            admitted,
            arrived_at,
            gate=runtime.gate,
            ledger=runtime.writer,
            metrics=runtime.metrics,
            supervise=runtime.supervise,
            entered=runtime.entered,
            left=runtime.left,
            unsettled=runtime.unsettled,
        )
        generation.start()
    except BaseException:
        runtime.gate.leave(principal)
        raise
    await generation.accepted()
    return generation


class Generation:
    """A request that runs: what is known of it, and its events.

    `supervise` runs work to its end whatever becomes of its caller; `entered` and `left` say from when to when the
    process renews this request's hold; `unsettled` takes what should close it and was not answered.
    """

    def __init__(
        self,
        admitted: Admitted,
        arrived_at: float,
        *,
        gate: ConcurrencyLimiter,
        ledger: Ledger,
        metrics: Metrics,
        supervise: Callable[[Coroutine[Any, Any, Any]], object],
        entered: Callable[[Running], None],
        left: Callable[[Running], None],
        unsettled: Callable[[Settle | Release], None],
    ) -> None:
        self.id = admitted.id
        self.principal = admitted.principal
        self.intent = admitted.intent
        self._placement = admitted.placement
        self.prompt_tokens = admitted.prepared.prompt_tokens  # where it runs: models count differently
        self._open_wishes = admitted.prepared.not_enforced
        self.created = int(moment_of(admitted.id).timestamp())
        self.lease_until = admitted.lease_until
        self._gate = gate
        self._ledger = ledger
        self._metrics = metrics
        self._supervise = supervise
        self._entered = entered
        self._left = left
        self._unsettled = unsettled
        self._limits = admitted.limits
        self._hold = Hold(
            admitted.id,
            admitted.principal.wallet,
            admitted.meter,
            ledger,
            tell=self._tell,
            lost=partial(self.cancel, faults.LEASE_LOST),
            supervise=supervise,
        )
        self._attempts: Attempts | None = Attempts(  # None once it has ended
            admitted.id,
            admitted.prepared,
            admitted.placement,
            allowed=self._hold.permit,
            is_cancelled=lambda: self._is_cancelled,
            reach=lambda: Reach.MODEL if self._is_model_told else Reach.ANYWHERE,
            pinned=self._pinned,
            restart=self._hold.restart,
            supervise=supervise,
        )
        self._buffer = EventBuffer()
        self._is_open = False  # its first token, or its end, has come
        self._waiter: asyncio.Future[None] | None = None  # of `accepted`
        self._refusal: Refusal | None = None
        self._fault: EngineFault | None = None
        self._is_cancelled = False
        self._finished: Finished | None = None
        self._is_model_told = False
        self._task: asyncio.Task[Any] | None = None  # while an engine has it
        self._patience: asyncio.TimerHandle | None = None  # with an engine that was told to stop
        self._is_given_up = False
        self._times = Times(arrived_at)
        self._delivery = delivering.get()
        self._is_out = False  # its tenant's places are free, and its end is told

    # -- for whoever writes the answer ----------------------------------------------------------------------------

    @property
    def route(self) -> Route:
        """Where it runs."""
        return self._placement.route

    @property
    def rate_states(self) -> tuple[BucketState, ...]:
        """The tenant's buckets after this request was taken from them."""
        return self._limits.states

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its answer: the tenant's rates, and the route."""
        return {**dict(rate_headers(self.rate_states)), **self._placement.headers}

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The wishes of its request that change nothing, those that its engine leaves open last."""
        return tuple(dict.fromkeys((*self.intent.not_enforced, *self._open_wishes)))

    def explain(self) -> dict[str, object]:
        """Return where it runs and why, and where it was tried before."""
        return self._placement.explain()

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
        self._entered(self)
        if self._delivery is not None:
            self._delivery.begun(self.id)
        self._supervise(self._run())

    async def accepted(self) -> None:
        """Return at the end, of a stream at its first token, or after `HEAD_SECONDS`; raise the Refusal if nothing took
        it.

        From then on a stream's reader may know the model that answers.
        """
        patience: float | None = HEAD_SECONDS
        while not self._is_open:
            if await self._sign(patience):
                continue
            if self._refusal is None:
                break
            patience = None  # what was held is still being given back
        if self._refusal is not None:
            self._refusal.headers |= self._placement.headers
            raise self._refusal
        self._is_model_told = self.intent.stream

    async def _sign(self, seconds: float | None) -> bool:
        """Wait for the first sign of the answer; False when none came within `seconds`."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._wake)
        try:
            await waiter
        except asyncio.CancelledError:
            self.client_left()
            raise
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._is_open

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self, fault: EngineFault | None) -> None:
        """Stop the engine; `fault` says why, None that the client left."""
        if self._is_cancelled or self._hold.is_closed:
            return
        self._is_cancelled = True
        self._fault = fault
        if self._task is not None and self._attempts is not None:
            self._patience = asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._give_up)
            self._supervise(self._attempts.cancel())

    def checkpoint(self) -> Mapping[str, int]:
        """The classes that would be charged if this process died now."""
        return self._hold.meter.usage.classes()

    async def renew_limits(self) -> None:
        """Renew the concurrency lease."""
        if not self._is_out:
            await self._limits.renew()

    # -- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        outcome = Outcome(FinishReason.ERROR, Usage(), None, error=faults.INTERNAL)
        charge = 0
        try:
            with spans.engine_call(self.id, self.principal.tenant, self.intent, self.route) as span:
                finished = await self._generate()
                if span is not None:
                    spans.engine_ended(span, finished, self.route)
            self._hold.close()
            self._finished = finished
            with tracing.span("settle") as span:
                charge, outcome = await self._settle(finished)
                if span is not None:
                    spans.settled(span, outcome)
        except Exception:
            # Nothing is known for sure: the hold is left to the sweep, which asks the engine.
            log.exception("generation_failed")
            charge = self._hold.meter.charge(self._hold.meter.usage)
        finally:
            self._hold.close()
            self._attempts = None  # they refer back here: both would stay until the collector finds them
            self._left(self)
            if self._delivery is not None:
                self._delivery.settled(self.id, outcome)
            await self._tell_end(outcome, charge)
        await asyncio.sleep(0)  # the reader, which was told just now, goes first
        report(self._metrics, self.route, outcome, self._finished)

    async def _generate(self) -> Finished:
        """Run the request on its engine and return its end, as far as that is known."""
        if self._is_cancelled:
            return Finished(FinishReason.CANCELLED, Usage())
        task = self._task = asyncio.current_task()
        try:
            return await self._relay()
        except asyncio.CancelledError:
            if not self._is_given_up or task is None or task.uncancel():
                raise
            log.warning("engine_silent_after_cancel")
            fault = self._fault or faults.ENGINE_STOPPED
            return Finished(FinishReason.ERROR, self._hold.meter.usage, fault, exact=False)
        finally:
            self._task = None
            if self._patience is not None:
                self._patience.cancel()

    def _give_up(self) -> None:
        """Wait no longer for an engine that was told to stop."""
        if self._task is not None:
            self._is_given_up = self._task.cancel()

    async def _relay(self) -> Finished:
        """Pass the engines' events on and return the last; a refusal before the first ends the request unrun."""
        attempts = self._attempts
        assert attempts is not None, "it runs once"
        try:
            return await attempts.run(self._note)
        except EngineError as error:
            if not self._is_open:
                may_have_run = attempts.may_have_run or error.may_have_run or isinstance(error, UnpreparedError)
                return self._refused(faults.refusal_of_engine(error), exact=not may_have_run)
            if isinstance(error, UnpreparedError):
                raise
            fault = EngineFault(error.code, error.message, retryable=True)
            return Finished(FinishReason.ERROR, self._hold.meter.usage, fault, exact=False)

    def _refused(self, refusal: Refusal, *, exact: bool = True) -> Finished:
        """Note that the engine didn't take the request: nothing ran, or (not `exact`) nobody knows."""
        self._refusal = refusal
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
            if (labelling := self._placement.labelling) is not None:
                event = labelling.answer(event, self.prompt_usage)
                self._hold.used(event.usage)
        self._buffer.put(event)
        if not self._is_open and not isinstance(event, Started):  # until then it may move to another model
            self._open()
        if self.intent.stream and self._buffer.is_overfull:  # nobody reads a whole answer before its end
            self.cancel(faults.READER_TOO_SLOW)

    def _open(self) -> None:
        self._is_open = True
        if self.intent.stream:
            self._wake()

    def _note_first(self) -> None:
        if not self._times.has_first:
            self._times.note_first()
            tracing.event(spans.FIRST_TOKEN)

    async def _tell(self, allowance: int, is_final: bool) -> None:
        """Tell the engine what it may generate."""
        if self._attempts is not None:
            await self._attempts.extend(allowance, is_final)

    async def _pinned(self, prepared: Prepared) -> Prepared:
        """Pin the hold to where the request moved; see `Hold.pin`."""
        assert self._placement.flight is not None, "a request is pinned to where it is"
        check_dimensions(self._placement.flight.engine, self.intent)
        prepared = await self._hold.pin(self._placement, prepared)
        self.prompt_tokens, self._open_wishes = prepared.prompt_tokens, prepared.not_enforced
        return prepared

    # -- its end --------------------------------------------------------------------------------------------------

    async def _settle(self, finished: Finished) -> tuple[int, Outcome]:
        """Close the hold; return what to leave taken from the credit bucket, and the outcome.

        The end of a kept answer is told before, as it will be settled once the answer is stored; one that can't be
        stored was not delivered.
        """
        reason, error, sluice_reason = end_of(
            finished, self._fault, is_cancelled=self._is_cancelled, short_of=self._hold.meter.short_of
        )
        is_ours = error is not None and error is not faults.READER_TOO_SLOW
        facts = self._facts(error.code if error else sluice_reason or reason.value)
        operation = self._closing(finished, facts, delivered=self._delivered(error) if is_ours else None)
        charge = operation.charge if isinstance(operation, Settle) else 0
        taken = charge
        if reason is FinishReason.CANCELLED and not (finished.exact or charge):
            taken = self.charge_so_far(self.prompt_usage)  # of what may have run for nothing, only so much a minute
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
            self._unsettled(operation)
            return taken, msgspec.structs.replace(outcome, charge=None)
        if isinstance(operation, Settle):
            self._metrics.settled(self.route.counted_as, operation.classes, charge)
        return taken, msgspec.structs.replace(outcome, charge=answer.charge, available=answer.posted - answer.held)

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

    async def _tell_end(self, outcome: Outcome, taken: int) -> None:
        """Tell the reader the end, once the tenant's place is free and `taken` left of its credit bucket."""
        if self._is_out:
            return
        self._is_out = True
        self._placement.leave()
        try:
            if self._refusal is not None:
                await self._limits.give_back()
            else:
                await self._limits.close(taken)
        finally:
            self._gate.leave(self.principal)  # after its lease, which whoever comes next takes
            self._is_open = True
            self._buffer.put(outcome)
            self._wake()

    def _facts(self, finish: str) -> EndFacts:
        return EndFacts(
            finish[:40],
            ttft_ms=self._times.ttft_ms(),
            duration_ms=self._times.duration_ms(),
            route=self.explain() if self._placement.attempts else None,
        )
