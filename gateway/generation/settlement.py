"""The end of a request: the operation that closes its hold, by one rule for generations and the sweep; its log line,
metrics and spans.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
import structlog

from billing import rating
from billing.promises import Run
from billing.rating import CardPrices
from billing.writer.entry import WriterError
from billing.writer.operations import EndFacts, Release, Settle, Settled, Stale, TrueUp
from gateway.durable.delivery import Outcome
from gateway.errors.faults import ENGINE_STOPPED, LEDGER_SLOW
from gateway.generation.intent import Intent
from gateway.runtime import tracing
from gateway.runtime.metrics import Metrics
from gateway.runtime.runtime import Ledger
from inference.types import EngineFault, Finished, FinishReason, Kind, Usage
from routing.types import Route

log = structlog.get_logger(__name__)


class Times:
    """When a request arrived, on the event loop's clock, when its first token and its end did, and for how many seconds
    it waited behind others of its tenant. Tokens come as the engine makes them: no reader holds them up.
    """

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first_at: float | None = None
        self._ended_at: float | None = None
        self._waited = 0.0

    @property
    def has_first(self) -> bool:
        """Whether its first token, or vector, is there."""
        return self._first_at is not None

    def note_first(self) -> None:
        """Take now as the time of its first token."""
        self._first_at = asyncio.get_running_loop().time()

    def note_waited(self, seconds: float) -> None:
        """Add what it waited behind others of its tenant."""
        self._waited += seconds

    def note_end(self) -> None:
        """Take now as the time of its engine's end."""
        self._ended_at = asyncio.get_running_loop().time()

    def run(self, usage: Usage, answers: int, *, is_whole: bool, is_waived: bool) -> Run:
        """Return what the plan's promise is measured by; of several answers each has its share of the tokens."""
        assert self._ended_at is not None, "it has ended"
        first = None if self._first_at is None else self._first_at - self._arrived_at
        ended, written = self._ended_at - self._arrived_at, usage.completion // answers
        return Run(self._waited, first, ended, usage.input, written, is_whole=is_whole, is_waived=is_waived)

    def ttft_ms(self) -> int | None:
        """Milliseconds until the first token; None: there was none."""
        return None if self._first_at is None else round((self._first_at - self._arrived_at) * 1000)

    def duration_ms(self) -> int:
        """Milliseconds until now."""
        return round((asyncio.get_running_loop().time() - self._arrived_at) * 1000)


def report(metrics: Metrics, route: Route, outcome: Outcome, finished: Finished | None) -> None:
    """Count and log a generation's end; `finished` is what its engine said, None where none said anything."""
    reason = outcome.error.code if outcome.error else outcome.sluice_reason or outcome.reason.value
    if finished is not None:
        metrics.engine_ended(route.counted_as, route.deployment_name, finished)
    metrics.generation_ended(route.counted_as, reason, ttft_ms=outcome.ttft_ms, duration_ms=outcome.duration_ms)
    log.info(
        "generation_ended",
        model=route.model,
        deployment=route.deployment_name,
        reason=reason,
        usage=outcome.usage.classes(),
        charge=outcome.charge,
        ttft_ms=outcome.ttft_ms,
        duration_ms=outcome.duration_ms,
        **_engine_times(finished),
    )


def _engine_times(finished: Finished | None) -> dict[str, int]:
    """A request's times as the engine reports them; foreign servers report fewer."""
    if finished is None:
        return {}
    times = {name: getattr(finished, name) for name in ("queued_ms", "prefill_ms", "gap_ms", "gap_p99_ms")}
    return {f"engine_{name}": round(value) for name, value in times.items() if value}


if TYPE_CHECKING:
    from opentelemetry.trace import Span

FIRST_TOKEN = "gen_ai.first_token"  # noqa: S105 - an event's name

_OPERATIONS = {Kind.CHAT: "chat", Kind.EMBEDDING: "embeddings", Kind.SCORE: "rerank", Kind.CLASSIFICATION: "classify"}


def engine_span(request: UUID, tenant: UUID, intent: Intent, route: Route) -> AbstractContextManager[Span | None]:
    """Return the span of an admitted request's time on its engines."""
    if not tracing.is_on():
        return tracing.NOTHING
    operation = _OPERATIONS[intent.kind]
    given: dict[str, str | float | bool | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sluice",
        "gen_ai.request.model": intent.model,
        "gen_ai.response.model": route.model,
        "gen_ai.response.id": str(request),
        "gen_ai.request.stream": intent.stream,
        "gen_ai.request.max_tokens": intent.sampling.max_tokens,
        "gen_ai.request.temperature": intent.sampling.temperature,
        "gen_ai.request.top_p": intent.sampling.top_p,
        "sluice.tenant": str(tenant),
        "sluice.task": route.task,
    }
    return tracing.call(
        f"{operation} {route.model}", {name: value for name, value in given.items() if value is not None}
    )


def describe_engine_end(span: Span, finished: Finished, route: Route) -> None:
    """Say how the engine ended the request, and on which deployment."""
    usage = finished.usage
    tracing.describe(
        span,
        {
            "gen_ai.response.finish_reasons": [finished.reason.value],
            "gen_ai.usage.input_tokens": usage.prompt,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.output_tokens": usage.completion,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "gen_ai.response.model": route.model,
            "sluice.deployment": route.deployment_name,
            "sluice.node": route.node or None,
            "error.type": finished.error.code if finished.error is not None else None,
        },
    )
    if finished.error is not None:
        tracing.failed(span)


def describe_charge(span: Span, outcome: Outcome) -> None:
    """Say what was charged; nothing of that is known while a settlement is pending."""
    tracing.describe(
        span,
        {
            "sluice.charge_micro": outcome.charge,
            "sluice.settlement_pending": outcome.charge is None,
            "sluice.waived": outcome.is_waived,
            "sluice.reason": outcome.error.code if outcome.error else outcome.sluice_reason or outcome.reason.value,
        },
    )


SETTLE_SECONDS = 5.0
RETRY_SECONDS = 0.1


def closing(
    request: UUID,
    wallet: UUID,
    finished: Finished,
    *,
    delivered: Usage | None = None,
    is_estimate: bool = False,
    card: CardPrices,
    multiplier_bp: int,
    facts: EndFacts,
) -> Settle | Release:
    """Return what closes the hold of a request that ended with `finished`: the rule for what is charged.

    An answer that came to its end, or that its client ended (by leaving, or by reading too slowly), is charged for what
    ran: then `delivered` is None. A request that failed through us is charged for what was `delivered`: of a
    stream the usage up to the last event sent, of an answer in one piece nothing. Where that is no output, nothing is
    charged, the prompt included, and if anything may have run the record is marked `waived`.

    `is_estimate` says that what was delivered isn't known for sure, so that better evidence may correct the record.
    """
    usage = finished.usage if delivered is None else delivered
    is_broken = delivered is not None or finished.error is not None
    classes = {} if is_broken and not usage.completion else usage.classes()
    if not classes and not is_estimate:
        is_waived = is_broken and (bool(finished.usage.classes()) or not finished.exact)
        return Release(request=request, wallet=wallet, facts=msgspec.structs.replace(facts, waived=is_waived))
    return Settle(
        request=request,
        wallet=wallet,
        charge=rating.charge(classes, card, multiplier_bp),
        classes=classes,
        facts=facts,
        exact=not is_estimate,
    )


def correction(request: UUID, wallet: UUID, finished: Finished, *, card: CardPrices, multiplier_bp: int) -> TrueUp:
    """Return what corrects the estimate of a stream of which it is known now that it ended with `finished`.

    Only requests that failed through us are estimated, so without output there is no charge.
    """
    classes = finished.usage.classes() if finished.usage.completion else {}
    return TrueUp(
        request=request,
        wallet=wallet,
        charge=rating.charge(classes, card, multiplier_bp),
        classes=classes,
        finish=finished.error.code[:40] if finished.error else finished.reason.value,
    )


def end_of(
    finished: Finished, fault: EngineFault | None, *, is_cancelled: bool, short_of: str | None
) -> tuple[FinishReason, EngineFault | None, str | None]:
    """Return reason, error and sluice_reason as the client is told them.

    `is_cancelled` says that this gateway stopped the request, and `fault` why: None that its client left, the only end
    that is told as cancelled. An engine that stopped on its own account failed. `short_of` says why no more credit
    could be held.
    """
    if finished.error is not None:
        return FinishReason.ERROR, finished.error, None
    if finished.reason is FinishReason.CANCELLED:
        if is_cancelled and fault is None:
            return FinishReason.CANCELLED, None, None
        return FinishReason.ERROR, fault or ENGINE_STOPPED, None
    if finished.reason is FinishReason.ALLOWANCE:
        if short_of is not None:
            return FinishReason.LENGTH, None, short_of
        return FinishReason.ERROR, LEDGER_SLOW, None
    return finished.reason, None, None


async def close_hold(ledger: Ledger, operation: Settle | Release) -> Settled | None:
    """Return the writer's answer, or None when there was none within SETTLE_SECONDS or the hold was not ours.

    A settle is safe to repeat, so one that failed is tried again; one that is merely late may still be applied.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + SETTLE_SECONDS
    while (rest := until - loop.time()) > 0:
        try:
            answer = await ledger.submit(operation, rest)
        except TimeoutError:
            break
        except WriterError as error:
            log.warning("settle_failed", request_id=str(operation.request), error=str(error))
            await asyncio.sleep(min(RETRY_SECONDS, rest))
            continue
        if isinstance(answer, Settled):
            return answer
        assert isinstance(answer, Stale), answer
        log.warning("hold_closed_by_another", request_id=str(operation.request))
        break
    return None
