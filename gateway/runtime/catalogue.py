"""The catalogue, prices and plans in a gateway's memory: an immutable snapshot, read anew with each epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings

from base import clock
from base.database.threads import DatabaseThreads
from billing.models import PlanVersion
from billing.rating import CardPrices
from billing.selectors.prices import prices_at, prices_change_at
from gateway.errors import faults
from gateway.runtime.conversations import MOST_CONVERSATIONS, Key
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch, EpochStaleError
from gateway.runtime.examples import Examples
from gateway.runtime.tenant_cache import TenantCache
from routing import catalogue
from routing.catalogue import Catalogue
from routing.types import Kept

SNAPSHOT_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The catalogue, the prices in force by card name, and the names of the offered plans with the models they allow.

    `epoch` was read before all of it. `good_until` is when, by the database's clock, the next published card version
    comes into force.
    """

    epoch: int
    catalogue: Catalogue
    prices: Mapping[str, CardPrices]
    plans: Mapping[str, frozenset[str]]  # an empty set allows all
    good_until: datetime | None = None

    def unfit(self) -> dict[UUID, str]:
        """Return by id why deployments can't be served: their model's rate card has no price in force."""
        return {
            deployment.id: f"no price of rate card '{model.rate_card}' is in force"
            for model in self.catalogue.models.values()
            if model.rate_card not in self.prices
            for deployment in self.catalogue.deployments.get(model.name, ())
            if not deployment.adapter  # its base may have a price
        }

    def plans_of(self, model: str) -> tuple[str, ...]:
        """Return the names of the plans that allow `model`."""
        return tuple(name for name, allowed in sorted(self.plans.items()) if not allowed or model in allowed)


def load_snapshot(epoch: int) -> Snapshot:
    """Return what the database has now; `epoch` is the one that was read before."""
    now = clock.now()
    return Snapshot(
        epoch=epoch,
        catalogue=catalogue.load(),
        prices=prices_at(now),
        plans=_plans(),
        good_until=prices_change_at(now),
    )


def _plans() -> dict[str, frozenset[str]]:
    """Return the allowed models of each offered plan's latest version, by the plan's name."""
    rows = PlanVersion.objects.filter(plan__is_offered=True).order_by("number")
    return {name: frozenset(allowed) for name, allowed in rows.values_list("plan__name", "allowed_models")}


class CurrentCatalogue:
    """The snapshot of the current epoch, with the engines that it names open; and what routing remembers beside it: the
    rules' examples as vectors, and the models of conversations.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        epoch: Epoch,
        engines: Engines,
        threads: DatabaseThreads,
        supervise: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.snapshot = snapshot
        self.epoch = epoch
        self.examples = Examples(
            engines, seconds=settings.SLUICE_EXAMPLES_SECONDS, model=settings.SLUICE_EXAMPLES_MODEL
        )
        self.conversations: TenantCache[Key, Kept] = TenantCache(MOST_CONVERSATIONS)
        self._engines = engines
        self._threads = threads
        self._supervise = supervise
        self._refreshed = asyncio.Event()

    async def current(self) -> Snapshot:
        """Return the snapshot of the current epoch, waiting a moment for it; raise a 503 Refusal without one."""
        try:
            if not await self._is_current():
                async with asyncio.timeout(SNAPSHOT_SECONDS):
                    while not await self._is_current():
                        await self._refreshed.wait()
        except (EpochStaleError, TimeoutError) as error:
            raise faults.catalogue_unavailable() from error
        return self.snapshot

    async def _is_current(self) -> bool:
        return self.snapshot.epoch == await self.epoch.current() and not self.is_old

    @property
    def is_old(self) -> bool:
        """True when a published price has come into force, by the database's clock, since the snapshot was read."""
        until, now = self.snapshot.good_until, self.epoch.now
        return until is not None and now is not None and now >= until

    async def refresh(self, epoch: int) -> None:
        """Read the snapshot anew and have exactly its engines open; `epoch` was read before."""
        snapshot = await self._threads.run(lambda: load_snapshot(epoch))
        self._engines.follow(snapshot.catalogue.all_deployments(), snapshot.unfit())
        self._supervise(self._engines.look())
        self.snapshot = snapshot
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    async def read_examples(self) -> None:
        """Read the rules' examples that have no vectors yet."""
        await self.examples.read(self.snapshot.catalogue)

    async def follow(self) -> None:
        """Refresh the snapshot whenever the epoch moved on or a new price came into force, until cancelled."""
        while True:
            epoch = await self.epoch.next()
            if epoch == self.snapshot.epoch and not self.is_old:
                continue
            try:
                await self.refresh(epoch)
            except Exception:
                log.exception("refresh_failed")  # the next reading tries again; until then admission refuses
