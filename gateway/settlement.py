"""From how an engine ended a request to what the writer closes its hold with: one rule for stream and sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import structlog

from billing import rating
from billing.rating import CardPrices
from billing.writer.errors import WriterError
from billing.writer.operations import Release, Settle, Settled, Stale
from gateway.ledger import Ledger
from inference.types import Finished

SETTLE_SECONDS = 5.0
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

    Nothing is charged when nothing ran, and when the engine failed before it gave any output.
    """
    classes = finished.usage.classes()
    failed = finished.error is not None and finished.usage.completion == 0
    if failed or not classes:
        return Release(request=request, wallet=wallet, facts=facts)
    return Settle(
        request=request,
        wallet=wallet,
        charge=rating.charge(classes, card, multiplier_bp),
        classes=classes,
        facts=facts,
        exact=finished.exact,
    )


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
