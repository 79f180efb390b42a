"""From how an engine ended a request to what the writer closes its hold with: one rule for stream and sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog

from billing import rating
from billing.rating import CardPrices
from billing.writer.errors import WriterError
from billing.writer.operations import Release, Settle, Settled, Stale, TrueUp
from gateway.errors.faults import LEDGER_SLOW
from gateway.runtime.runtime import Ledger
from inference.engine import Engine
from inference.errors import EngineError
from inference.types import EngineFault, Finished, FinishReason, NothingRan, Usage

SETTLE_SECONDS = 5.0
EVIDENCE_SECONDS = 1.0
RETRY_SECONDS = 0.1

log = structlog.get_logger(__name__)


def closing(
    request: UUID,
    wallet: UUID,
    finished: Finished,
    *,
    card: CardPrices,
    multiplier_bp: int,
    facts: Mapping[str, Any],
) -> Settle | Release:
    """Return what closes the hold of a request that ended with `finished`.

    Nothing is charged when nothing ran, and when the engine failed before it gave any output; while that isn't known
    for sure it is an estimate like any other, so that exact evidence can correct it.
    """
    classes = _charged(finished)
    if not classes and finished.exact:
        return Release(request=request, wallet=wallet, facts=facts)
    return Settle(
        request=request,
        wallet=wallet,
        charge=rating.charge(classes, card, multiplier_bp),
        classes=classes,
        facts=facts,
        exact=finished.exact,
    )


def correction(request: UUID, wallet: UUID, finished: Finished, *, card: CardPrices, multiplier_bp: int) -> TrueUp:
    """Return what corrects the estimate of a request of which it is known now that it ended with `finished`."""
    classes = _charged(finished)
    return TrueUp(
        request=request,
        wallet=wallet,
        charge=rating.charge(classes, card, multiplier_bp),
        classes=classes,
        finish=finished.error.code[:40] if finished.error else finished.reason.value,
    )


def _charged(finished: Finished) -> dict[str, int]:
    """Return the tokens by class that are paid for: none when the engine failed before it gave any output."""
    failed = finished.error is not None and finished.usage.completion == 0
    return {} if failed else finished.usage.classes()


def end_of(
    finished: Finished, fault: EngineFault | None, *, is_exhausted: bool
) -> tuple[FinishReason, EngineFault | None, str | None]:
    """Return reason, error and sluice_reason as the client is told them; `fault` is why we stopped it, if we did."""
    if finished.error is not None:
        return FinishReason.ERROR, finished.error, None
    if finished.reason is FinishReason.CANCELLED and fault is not None:
        return FinishReason.ERROR, fault, None
    if finished.reason is FinishReason.ALLOWANCE:
        if is_exhausted:
            return FinishReason.LENGTH, None, "credit_exhausted"
        return FinishReason.ERROR, LEDGER_SLOW, None
    return finished.reason, None, None


async def exact_end(engine: Engine, request: UUID, lost: Finished) -> Finished:
    """Return `lost` with the usage of the worker's own record, if that can be had at once; the error stays."""
    try:
        async with asyncio.timeout(EVIDENCE_SECONDS):
            evidence = await engine.usage_of(request.hex)
    except (EngineError, TimeoutError):
        return lost
    match evidence:
        case Finished(exact=True, usage=usage):
            return replace(lost, usage=usage, exact=True)
        case NothingRan():
            return replace(lost, usage=Usage(), exact=True)
    return lost


async def close_hold(ledger: Ledger, operation: Settle | Release) -> Settled | None:
    """Return the writer's answer, or None when there was none within SETTLE_SECONDS or the hold was not ours.

    A settle is safe to repeat, so one that failed is tried again; one that is merely late may still be applied.
    """
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            return await _closed(ledger, operation)
    except TimeoutError:
        return None


async def _closed(ledger: Ledger, operation: Settle | Release) -> Settled | None:
    while True:
        try:
            answer = await ledger.submit(operation)
        except WriterError as error:
            log.warning("settle_failed", request=str(operation.request), error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if isinstance(answer, Settled):
            return answer
        assert isinstance(answer, Stale), answer
        log.warning("hold_closed_by_another", request=str(operation.request))
        return None
