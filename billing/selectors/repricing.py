"""What a time's usage would have cost at other prices, to the µcr: each request is rated and rounded as it would be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import reduce
from operator import add
from typing import Any

from django.db.models import BigIntegerField, Case, Count, ExpressionWrapper, F, Sum, Value, When
from django.db.models.functions import Cast

from billing.models import UsageRecord
from billing.rating import CLASSES, INPUT_CLASSES, WHOLE_BP, CardPrices

_MILLION = 10**6
_SCALE = _MILLION * WHOLE_BP


@dataclass(frozen=True, slots=True)
class Repriced:
    """Requests of a time, what they were charged, and what they would have been."""

    requests: int
    charge: int
    would_be: int


def repriced(card: CardPrices, models: Collection[str], first: date, last: date) -> Repriced:
    """Return what the requests for the models from `first` to `last` (UTC days, both included) were charged and would
    have been at the prices of `card`, each with the multiplier that it had.

    Waived requests and those that ran nothing cost nothing either way. A request of a batch keeps the share of its
    rates that it paid. It reads every record of these days: a page asks for it apart.
    """
    records = UsageRecord.objects.latest_revisions().filter(day__gte=first, day__lte=last, model__in=list(models))
    counted = records.filter(waived=False).annotate(tokens=_sum(CLASSES), context=_sum(INPUT_CLASSES))
    rated = counted.filter(tokens__gt=0).annotate(product=_product(card))
    # `billing.rating.charge` in whole numbers below 2⁶³: what would pass that by the multiplier is divided before.
    whole, rest = F("product") / _MILLION, F("product") % _MILLION
    parts = rated.annotate(whole=_whole(whole * F("multiplier_bp")), rest=_whole(rest * F("multiplier_bp")))
    below = (F("whole") % WHOLE_BP) * _MILLION + F("rest") + (_SCALE - 1)
    would_be = _whole(F("whole") / WHOLE_BP + below / _SCALE + card.request_fee)
    sums = parts.aggregate(requests=Count("pk"), charged=Sum("charge"), would_be=Sum(would_be))
    return Repriced(sums["requests"], int(sums["charged"] or 0), int(sums["would_be"] or 0))


def _product(card: CardPrices) -> Any:
    """Return tokens times their rates, those of the tier that the context is in."""
    cheapest, *dearer = [(tier.min_context, _rated(tier.rates)) for tier in card.tiers]
    if not dearer:
        return cheapest[1]
    tiers = [When(context__gte=least, then=rated) for least, rated in reversed(dearer)]
    return Case(*tiers, default=cheapest[1], output_field=BigIntegerField())


def _rated(rates: Mapping[str, int]) -> Any:
    return _whole(reduce(add, (_tokens(name) * Value(rates[name], output_field=BigIntegerField()) for name in CLASSES)))


def _sum(classes: Collection[str]) -> Any:
    return reduce(add, map(_tokens, classes))


def _tokens(usage_class: str) -> Any:
    return Cast(f"{usage_class}_tokens", BigIntegerField())


def _whole(expression: Any) -> Any:
    return ExpressionWrapper(expression, output_field=BigIntegerField())
