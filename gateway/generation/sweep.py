"""The sweep: holds whose gateway let its lease run out are closed by what the engine knows of them.

What this process decided and could not get settled is asked for again as it was decided, and its lease is kept until
then, so that no sweep beside it decides anew. Else the gateway was lost with its answer, and the rule of
`settlement.closing` holds: an answer in one piece was never delivered and is waived; a stream went out as it was made,
so what the engine gave counts as delivered. A kept answer (`gateway.durable`) counts as delivered if it was stored, and
is settled by what was stored with it; else it never will be, and is waived.

Of what engines gave, Finished is settled exactly, NothingRan released. While an engine still runs a request or can't be
reached, its hold stays orphaned (the credit held) and is asked about again, for at most 15 minutes. What is lost, or
takes longer, is settled at its last checkpoint and marked as an estimate. An estimate is corrected when its worker
comes back within the 24 hours that it keeps its record and that says Finished.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from base import clock
from base.database.threads import DatabaseThreads
from billing import rating
from billing.models import Rate, RateCardVersion
from billing.rating import CardPrices
from billing.selectors.usage import Estimate, estimates_since
from billing.services.holds import OrphanedHold, take_expired
from billing.writer.entry import WriterError
from billing.writer.operations import Answer, EndFacts, Release, Settle, Settled, TrueUp
from gateway.durable.answers import closings_of
from gateway.generation.attempts import attempt_id
from gateway.generation.placement import MOST_ATTEMPTS
from gateway.generation.settlement import closing, correction
from inference.engine import Engine
from inference.errors import EngineError
from inference.types import Evidence, Finished, FinishReason, Lost, NothingRan, Running, Usage

SWEEP_INTERVAL = 10.0
SWEEP_LEASE = timedelta(seconds=8)  # for one turn: over before the next one of the same gateway
EVIDENCE_SECONDS = 2.0
EVIDENCE_WINDOW = timedelta(minutes=15)
RECORD_WINDOW = timedelta(hours=24)  # how long a worker's record knows a request
BATCH = 1000
ESTIMATES = 100  # looked at in one turn; the next one goes on behind them
AT_ONCE = 32

log = structlog.get_logger(__name__)


class Sweep:
    """Closes orphaned holds and corrects estimates.

    `engines_of` finds the engines of a deployment's replicas, `submit` applies what was decided. `unsettled` has what
    this process decided about its own holds; what was answered is taken out. `clock` is the database's, by which holds
    were orphaned; it is asked on one of `threads`. `share` says which of how many gateways this one is (0 of 1): each
    asks about its own share of the estimates. With a `lease`, sweeps of several gateways share the work: what one
    looks at is left alone by the others for so long.
    """

    def __init__(
        self,
        *,
        engines_of: Callable[[UUID], Sequence[Engine]],
        submit: Callable[[Settle | Release | TrueUp], Awaitable[Answer]],
        threads: DatabaseThreads,
        unsettled: MutableMapping[UUID, Settle | Release] | None = None,
        clock: Callable[[], datetime] = clock.now,
        lease: timedelta | None = None,
        share: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        self._engines_of = engines_of
        self._submit = submit
        self._threads = threads
        self._unsettled = {} if unsettled is None else unsettled
        self._clock = clock
        self._lease = lease
        self._share = share
        self._cards: dict[UUID, CardPrices] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._after: UUID | None = None  # the last estimate that was looked at
        self._lost: set[UUID] = set()  # estimates whose worker knows no more than we do

    async def turn(self) -> Counter[str]:
        """Apply what this process decided, look at every other hold whose lease is over, then at some estimates.

        Returns how many holds were settled, released, waived, estimated or left waiting, and how many
        estimates corrected.
        """
        decided = list(self._unsettled.values())
        mine = {operation.request for operation in decided}
        orphans = await self._threads.run(lambda: take_expired(BATCH, lease=self._lease))
        now = await self._threads.run(self._clock)
        due = [*decided, *(orphan for orphan in orphans if orphan.request not in mine)]
        found = Counter(await asyncio.gather(*(self._close(one, now) for one in due)))
        return found + await self._correct_estimates(now)

    async def _close(self, due: Settle | Release | OrphanedHold, now: datetime) -> str:
        async with self._places:
            try:
                operation = await self._decide(due, now) if isinstance(due, OrphanedHold) else due
                answer = await self._submit(operation) if operation is not None else None
            except WriterError as error:
                log.warning("sweep_failed", request_id=str(due.request), error=str(error))
                return "waiting"
            except Exception:  # one hold that can't be understood must not keep the others, or the corrections, open
                log.exception("sweep_failed", request_id=str(due.request))
                return "waiting"
        if operation is None:
            return "waiting"
        self._unsettled.pop(due.request, None)
        if not isinstance(answer, Settled):
            return "closed_by_another"
        how = _how(operation)
        log.info("hold_swept", request_id=str(due.request), how=how, charge=answer.charge)
        return how

    async def _decide(self, orphan: OrphanedHold, now: datetime) -> Settle | Release | None:
        """Return what closes the hold now, or None while better evidence may still come."""
        if orphan.kept is not None:
            return await self._decide_kept(orphan, orphan.kept)
        evidence = await self._evidence(orphan.deployment, orphan.request)
        if not await self._is_covered(evidence, orphan, orphan.amount):
            evidence = Lost()
        is_over = now - orphan.orphaned_at >= EVIDENCE_WINDOW
        match evidence:
            case NothingRan():
                return Release(request=orphan.request, wallet=orphan.wallet, facts=EndFacts("nothing_ran"))
            case _ if not orphan.is_streamed:
                finished = _estimate(_checkpoint(orphan))
            case Finished(exact=True):
                finished = evidence
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
            delivered=finished.usage if orphan.is_streamed else Usage(),
            is_estimate=orphan.is_streamed and not finished.exact,
            card=await self._card(orphan.card_version),
            multiplier_bp=orphan.multiplier_bp,
            facts=EndFacts(finished.reason.value if finished.exact else "lost"),
        )

    async def _decide_kept(self, orphan: OrphanedHold, run: UUID) -> Settle | Release:
        """Return what closes the hold of a request behind a kept answer."""
        closings = await self._threads.run(lambda: closings_of(run))
        stored = None if closings is None else closings.get(orphan.request.hex)
        if stored is None:
            return Release(request=orphan.request, wallet=orphan.wallet, facts=EndFacts("lost", waived=True))
        card = await self._card(orphan.card_version)
        return Settle(
            request=orphan.request,
            wallet=orphan.wallet,
            charge=rating.charge(stored["classes"], card, orphan.multiplier_bp),
            classes=stored["classes"],
            facts=EndFacts(stored["finish"]),
            exact=stored["exact"],
        )

    async def _evidence(self, deployment: UUID, request: UUID) -> Evidence | None:
        """Return what the deployment's replicas know of the request, None while one that may know more doesn't answer.

        Of the attempts that were made on several of them one after another the last one counts: its usage is the
        whole request's. An engine that forgets (a foreign server's) can't tell an attempt that it lost from one that
        was never made: after one that ended well or still runs there was none.
        """
        engines = self._engines_of(deployment)
        found = await asyncio.gather(  # any may have been made here: those before it perhaps on another deployment
            *(self._attempt(engines, attempt_id(request, number)) for number in range(MOST_ATTEMPTS))
        )
        all_answer = bool(engines) and all(evidence is not None for attempt in found for evidence in attempt)
        last: Evidence = NothingRan()
        for attempt in reversed(found):
            known = [one for one in attempt if one is not None and not isinstance(one, NothingRan)]
            if not known:
                continue
            evidence = min(known, key=_rank)
            if isinstance(evidence, Running) or (isinstance(evidence, Finished) and evidence.error is None):
                return evidence
            if isinstance(last, NothingRan):
                last = evidence
            if not isinstance(evidence, Lost):
                break
        return last if all_answer else None

    async def _attempt(self, engines: Sequence[Engine], attempt: str) -> list[Evidence | None]:
        return await asyncio.gather(*(self._ask(engine, attempt) for engine in engines))

    async def _ask(self, engine: Engine, attempt: str) -> Evidence | None:
        """Return what the engine says of the attempt, None when it doesn't answer."""
        try:
            async with asyncio.timeout(EVIDENCE_SECONDS):
                return await engine.usage_of(attempt)
        except (EngineError, TimeoutError) as error:
            log.info("no_evidence", attempt=attempt, error=str(error) or type(error).__name__)
            return None

    async def _correct_estimates(self, now: datetime) -> Counter[str]:
        """Ask about the next estimates of the last 24 hours, and correct those whose end is known now."""
        since = now - RECORD_WINDOW
        after = self._after
        page = await self._threads.run(lambda: estimates_since(since, after=after, limit=ESTIMATES))
        self._after = page[-1].request if len(page) == ESTIMATES else None
        oldest = int(since.timestamp() * 1000) << 80
        self._lost = {request for request in self._lost if request.int >= oldest}
        silent: set[UUID] = set()
        rank, gateways = self._share()
        mine = [estimate for estimate in page if estimate.request.int % gateways == rank]
        asked = [estimate for estimate in mine if estimate.request not in self._lost]
        return Counter(
            how for how in await asyncio.gather(*(self._correct(one, silent) for one in asked)) if how is not None
        )

    async def _correct(self, estimate: Estimate, silent: set[UUID]) -> str | None:
        """Return "corrected" when the estimate was; a deployment that says nothing is asked no more in this turn."""
        async with self._places:
            if estimate.deployment in silent:
                return None
            evidence = await self._evidence(estimate.deployment, estimate.request)
            if evidence is None:
                silent.add(estimate.deployment)
            elif isinstance(evidence, Lost | NothingRan) or not await self._is_covered(
                evidence, estimate, estimate.held
            ):
                self._lost.add(estimate.request)
                return None
            if not isinstance(evidence, Finished) or not evidence.exact:
                return None
            operation = correction(
                estimate.request,
                estimate.wallet,
                evidence,
                card=await self._card(estimate.card_version),
                multiplier_bp=estimate.multiplier_bp,
            )
            try:
                answer = await self._submit(operation)
            except WriterError as error:
                log.warning("true_up_failed", request_id=str(estimate.request), error=str(error))
                return None
        if not isinstance(answer, Settled):
            return None
        log.info("estimate_corrected", request_id=str(estimate.request), before=estimate.charge, charge=answer.charge)
        return "corrected"

    async def _is_covered(self, evidence: Evidence | None, of: OrphanedHold | Estimate, held: int) -> bool:
        """Whether what an engine tells fits in what was held: no honest one has generated more."""
        if not isinstance(evidence, Finished | Running):
            return True
        charge = rating.charge(evidence.usage.classes(), await self._card(of.card_version), of.multiplier_bp)
        if charge > held:
            log.warning("evidence_impossible", request_id=str(of.request), charge=charge, held=held)
        return charge <= held

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


def _rank(evidence: Evidence) -> int:
    """Order what several replicas know of one attempt: its end is the most certain."""
    return 0 if isinstance(evidence, Finished) else 1 if isinstance(evidence, Running) else 2


def _how(operation: Settle | Release) -> str:
    if isinstance(operation, Settle):
        return "settled" if operation.exact else "estimated"
    return "waived" if operation.facts.waived else "released"


def _checkpoint(orphan: OrphanedHold) -> Usage:
    """Return the last usage that the hold's gateway kept."""
    return Usage(**orphan.checkpoint)


def _estimate(usage: Usage) -> Finished:
    return Finished(FinishReason.ERROR, usage, exact=False)
