"""Numbers and sums of usage for the admin's first page, from the sums of days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from base.units import MICRO
from billing.models import Hold, Wallet
from billing.selectors.usage import UsageSum, usage_of_all

MOST_MODELS = 6


@dataclass(frozen=True, slots=True)
class Headline:
    """Sums over the last days, and what is held now; credit in µcr."""

    requests: int
    tokens: int
    charge: int
    held: int
    open_holds: int


def overview(days: int) -> tuple[Headline, dict[str, Any]]:
    """Return the numbers of the last days, and their credits by day and model."""
    today = timezone.now().date()
    labels = [today - timedelta(days=back) for back in range(days - 1, -1, -1)]
    rows = usage_of_all(labels[0], today)
    numbers = Headline(
        requests=sum(row.requests for row in rows),
        tokens=sum(row.input_tokens + row.cache_read_tokens + row.output_tokens for row in rows),
        charge=sum(row.charge for row in rows),
        held=Wallet.objects.filter(held__gt=0).aggregate(sum=Sum("held"))["sum"] or 0,
        open_holds=Hold.objects.count(),
    )
    return numbers, _chart(labels, rows)


def _chart(labels: Sequence[date], rows: Sequence[UsageSum]) -> dict[str, Any]:
    """Return the days, and of each model its credits on them; the models that cost least share "Other"."""
    cells: dict[str, Counter[date]] = {}
    for row in rows:
        cells.setdefault(row.model or "", Counter())[row.day] += row.charge
    ranked = sorted(cells, key=lambda model: (-cells[model].total(), model))
    shown = {model: cells[model] for model in ranked[:MOST_MODELS]}
    if ranked[MOST_MODELS:]:
        shown["Other"] = sum((cells[model] for model in ranked[MOST_MODELS:]), Counter[date]())
    return {
        "labels": [day.isoformat() for day in labels],
        "datasets": [{"label": model, "data": [sums[day] / MICRO for day in labels]} for model, sums in shown.items()],
    }
