"""The operator's cost of requests, by the calibration of their deployment that was in force when they began."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from base.ids import day_of
from billing.costs import CostRates
from billing.models import CostSample, UsageRecord
from billing.rating import CLASSES


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request cost the operator in µcr, and the calibration that says so."""

    amount: int
    sample: UUID


class Costs:
    """The calibrations of some deployments."""

    def __init__(self, deployments: Collection[UUID]) -> None:
        self._samples: dict[UUID, list[tuple[datetime, UUID, CostRates]]] = {}
        rows = CostSample.objects.filter(deployment__in=deployments).order_by("created_at", "id")
        for deployment, at, pk, rates in rows.values_list("deployment", "created_at", "id", "rates"):
            self._samples.setdefault(deployment, []).append((at, pk, CostRates(**rates)))

    def of(self, record: UsageRecord) -> Cost | None:
        """Return the cost of a usage record; None where its deployment wasn't calibrated when it began."""
        samples = self._samples.get(record.deployment, [])
        place = bisect_right(samples, record.reserved_at, key=lambda one: one[0])
        if not place:
            return None
        _, pk, rates = samples[place - 1]
        return Cost(rates.cost({name: getattr(record, f"{name}_tokens") for name in CLASSES}), pk)


def cost_of(record: UsageRecord) -> Cost | None:
    """Return the cost of one request as of that revision."""
    return Costs([record.deployment]).of(record)


def cost_changes(revisions: Iterable[tuple[UUID, int]]) -> Mapping[tuple[UUID, int], tuple[int, int]]:
    """Return by how much each revision (request, number) changed its request's cost, and the charge of requests whose
    cost is known; those without a calibration are left out. Three queries at most.
    """
    named = dict.fromkeys(revisions)
    if not CostSample.objects.exists():
        return {}
    wanted = {request for request, _ in named}
    days = {day_of(request) for request in wanted}
    columns = ("request", "revision", "deployment", "reserved_at", "charge", *(f"{name}_tokens" for name in CLASSES))
    records = UsageRecord.objects.filter(day__in=days, request__in=wanted).only(*columns)
    found = {(one.request, one.revision): one for one in records}
    costs = Costs({one.deployment for one in found.values()})
    changes: dict[tuple[UUID, int], tuple[int, int]] = {}
    for request, revision in named:
        record, earlier = found.get((request, revision)), found.get((request, revision - 1))
        cost = None if record is None else costs.of(record)
        if record is None or cost is None:
            continue
        before = None if earlier is None else costs.of(earlier)
        less = (0, 0) if earlier is None or before is None else (before.amount, earlier.charge)
        changes[request, revision] = (cost.amount - less[0], record.charge - less[1])
    return changes
