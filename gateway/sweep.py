"""The sweep: holds whose gateway let its lease run out are closed by what the engine knows of them.

Finished is settled exactly, NothingRan released. While an engine still runs a request or can't be reached, its hold
stays orphaned (the credit held) and is asked about again, for at most 15 minutes. What is lost, or takes longer, is
settled at its last checkpoint and marked as an estimate.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.utils import timezone

from billing.models import Rate, RateCardVersion
from billing.rating import CardPrices
from billing.writer.errors import WriterError
from billing.writer.leases import OrphanedHold, take_expired
from billing.writer.operations import Answer, Release, Settle, Settled
from gateway.settlement import closing
from gateway.threads import DatabaseThreads
from inference.engine import Engine
from inference.errors import EngineError
from inference.types import Evidence, Finished, FinishReason, Lost, NothingRan, Running, Usage

SWEEP_INTERVAL = 10.0
EVIDENCE_SECONDS = 2.0
EVIDENCE_WINDOW = timedelta(minutes=15)
BATCH = 1000
AT_ONCE = 32

log = structlog.get_logger(__name__)


class Sweep:
    """Closes orphaned holds. `engine_of` finds a deployment's engine, `submit` applies what was decided."""

    def __init__(
        self,
        *,
        engine_of: Callable[[UUID], Engine | None],
        submit: Callable[[Settle | Release], Awaitable[Answer]],
        threads: DatabaseThreads,
        clock: Callable[[], datetime] = timezone.now,
    ) -> None:
        self._engine_of = engine_of
        self._submit = submit
        self._threads = threads
        self._clock = clock
        self._cards: dict[UUID, CardPrices] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def turn(self) -> Counter[str]:
        """Look at every hold whose lease is over; return how many were settled, released, estimated or left waiting."""
        orphans = await self._threads.run(lambda: take_expired(BATCH))
        return Counter(await asyncio.gather(*(self._close(orphan) for orphan in orphans)))

    async def _close(self, orphan: OrphanedHold) -> str:
        async with self._places:
            try:
                operation = await self._decide(orphan)
                answer = await self._submit(operation) if operation is not None else None
            except WriterError as error:
                log.warning("sweep_failed", request=str(orphan.request), error=str(error))
                return "waiting"
        if operation is None:
            return "waiting"
        if not isinstance(answer, Settled):
            return "closed_by_another"
        how = "released" if isinstance(operation, Release) else "settled" if operation.exact else "estimated"
        log.info("hold_swept", request=str(orphan.request), how=how, charge=answer.charge)
        return how

    async def _decide(self, orphan: OrphanedHold) -> Settle | Release | None:
        """Return what closes the hold now, or None while better evidence may still come."""
        evidence = await self._evidence(orphan)
        is_over = self._clock() - orphan.orphaned_at >= EVIDENCE_WINDOW
        match evidence:
            case Finished(exact=True):
                finished = evidence
            case NothingRan():
                return Release(request=orphan.request, wallet=orphan.wallet, facts={"finish": "nothing_ran"})
            case Lost():
                finished = _estimate(_checkpoint(orphan))
            case Running(usage=usage) if is_over:
                finished = _estimate(usage)
            case _ if is_over:
                finished = _estimate(_checkpoint(orphan))
            case _:
                return None
        return closing(
            orphan.request,
            orphan.wallet,
            finished,
            card=await self._card(orphan.card_version),
            multiplier_bp=orphan.multiplier_bp,
            facts={"finish": finished.reason.value if finished.exact else "lost"},
        )

    async def _evidence(self, orphan: OrphanedHold) -> Evidence | None:
        """Return what the engine says of the request, None when nobody answers."""
        engine = self._engine_of(orphan.deployment)
        if engine is None:
            return None
        try:
            async with asyncio.timeout(EVIDENCE_SECONDS):
                return await engine.usage_of(orphan.request.hex)
        except (EngineError, TimeoutError) as error:
            log.info("no_evidence", request=str(orphan.request), error=str(error) or type(error).__name__)
            return None

    async def _card(self, version: UUID) -> CardPrices:
        """Return the prices that the hold was made under; a published version never changes."""
        if version not in self._cards:
            self._cards[version] = await self._threads.run(lambda: prices_of(version))
        return self._cards[version]


def prices_of(version_id: UUID) -> CardPrices:
    """Return the prices of one card version."""
    version = RateCardVersion.objects.get(pk=version_id)
    rates = Rate.objects.filter(version=version).values_list("tier_min_context", "usage_class", "rate")
    return CardPrices.build(version.pk, version.request_fee, rates)


def _checkpoint(orphan: OrphanedHold) -> Usage:
    """Return the last usage that the hold's gateway kept."""
    return Usage(**orphan.checkpoint)


def _estimate(usage: Usage) -> Finished:
    return Finished(FinishReason.ERROR, usage, exact=False)
