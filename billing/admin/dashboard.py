"""Numbers and charts of usage for the admin's first page, from the rollups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Sum
from django.utils import timezone

from billing.models import Hold, Wallet
from billing.selectors.usage import usage_by_day
from billing.unit import MICRO

MOST_MODELS = 6
COLOURS = ("#0b5cad", "#1c8a6b", "#b3590b", "#7a4bb8", "#b5316a", "#0e7490", "#6b7280")  # the console's series
MEASURES = ("charge", "requests", "input_tokens", "cache_read_tokens", "output_tokens")


def usage_chart(days: int = 30, *, measure: str = "charge", tenant: UUID | None = None) -> dict[str, Any]:
    """Return a stacked bar chart's data (labels and datasets, as Chart.js takes them): usage by UTC day and model.

    The models that used most have a bar of their own, the others share "Other". Charges are in credits.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure: {measure!r} is none of {', '.join(MEASURES)}")
    today = timezone.now().date()
    labels = [today - timedelta(days=back) for back in range(days - 1, -1, -1)]
    cells: dict[str, Counter[date]] = {}
    for row in usage_by_day(tenant, labels[0], today, by=["model"]):
        cells.setdefault(row.model or "", Counter())[row.day] += getattr(row, measure)
    ranked = sorted(cells, key=lambda model: (-cells[model].total(), model))
    shown = {model: cells[model] for model in ranked[:MOST_MODELS]}
    if ranked[MOST_MODELS:]:
        shown["Other"] = sum((cells[model] for model in ranked[MOST_MODELS:]), Counter[date]())
    scale = MICRO if measure == "charge" else 1
    return {
        "labels": [day.isoformat() for day in labels],
        "datasets": [
            {
                "label": model,
                "backgroundColor": COLOURS[position % len(COLOURS)],
                "stack": "usage",
                "data": [sums[day] / scale if scale > 1 else sums[day] for day in labels],
            }
            for position, (model, sums) in enumerate(shown.items())
        ],
    }


@dataclass(frozen=True, slots=True)
class Headline:
    """Sums over the last days, and what stands now; credit in µcr."""

    days: int
    requests: int
    tokens: int
    charge: int
    posted: int
    held: int
    open_holds: int


def headline(days: int = 30) -> Headline:
    """Return the numbers above the chart."""
    today = timezone.now().date()
    rows = usage_by_day(None, today - timedelta(days=days - 1), today)
    standing = Wallet.objects.aggregate(posted=Sum("posted"), held=Sum("held"))
    return Headline(
        days=days,
        requests=sum(row.requests for row in rows),
        tokens=sum(row.input_tokens + row.cache_read_tokens + row.output_tokens for row in rows),
        charge=sum(row.charge for row in rows),
        posted=standing["posted"] or 0,
        held=standing["held"] or 0,
        open_holds=Hold.objects.count(),
    )
