"""Calibrations: the latest of a price list or model, and how busy its device has been since."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db.models import OuterRef, Subquery, Sum

from billing.costs import DevicePrice
from billing.models import CostSample, UsageRollup
from billing.rating import WHOLE_BP


def sample_of_card(card: str) -> CostSample | None:
    """Return the latest calibration that proposes new prices for a card."""
    return CostSample.objects.filter(card=card).order_by("-created_at").first()


def calibrated(models: Collection[str]) -> dict[str, CostSample]:
    """Return the latest calibration of each of the models that has one."""
    newest = CostSample.objects.filter(model=OuterRef("model")).order_by("-created_at").values("pk")[:1]
    return {one.model: one for one in CostSample.objects.filter(model__in=models, pk=Subquery(newest))}


def busy_share(sample: CostSample, now: datetime) -> float | None:
    """Return the part of the time since the calibration, of 30 days at most, in which the device was busy with the
    model, by what its requests cost; None within the first hour, and where an hour costs nothing.
    """
    price = DevicePrice(**sample.price)
    since = max(sample.created_at, now - timedelta(days=30)).replace(minute=0, second=0, microsecond=0)
    hours = (now - since) / timedelta(hours=1)
    if not price.hour or hours < 1:
        return None
    cost = UsageRollup.objects.filter(hour__gte=since, model=sample.model).aggregate(sum=Sum("cost"))["sum"] or 0
    return float(cost) * price.utilisation_bp / WHOLE_BP / (price.hour * hours)
