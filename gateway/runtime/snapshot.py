"""The catalogue, prices and plans in a gateway's memory: immutable, read anew with each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from base import clock
from billing.models import PlanVersion
from billing.rating import CardPrices
from billing.selectors.prices import prices_at, prices_change_at
from routing import catalogue
from routing.catalogue import Catalogue


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
