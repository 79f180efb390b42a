"""The closing operation of a request, by how it ended: the same rule for generations and the sweep."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import structlog

from billing import rating
from billing.rating import CardPrices
from billing.writer.errors import WriterError
from billing.writer.operations import EndFacts, Release, Settle, Settled, Stale, TrueUp
from gateway.errors.faults import ENGINE_STOPPED, LEDGER_SLOW
from gateway.runtime.runtime import Ledger
from inference.types import EngineFault, Finished, FinishReason, Usage

SETTLE_SECONDS = 5.0
RETRY_SECONDS = 0.1

log = structlog.get_logger(__name__)


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
