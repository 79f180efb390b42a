"""Prices in force, and what a request was charged by its own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Min, OuterRef, Subquery

from billing.models import Rate, RateCardVersion, UsageRecord
from billing.rating import CLASSES, CardPrices, context_of, shares


def prices_at(moment: datetime) -> dict[str, CardPrices]:
    """Return the prices of every card at `moment`, by the card's name; cards without a version by then are left out."""
    newest = (
        RateCardVersion.objects.filter(card=OuterRef("card"), published_at__isnull=False, effective_from__lte=moment)
        .order_by("-effective_from")
        .values("pk")[:1]
    )
    versions = list(RateCardVersion.objects.select_related("card").filter(pk=Subquery(newest)))
    rates: dict[UUID, list[tuple[int, str, int]]] = defaultdict(list)
    for rate in Rate.objects.filter(version__in=versions):
        rates[rate.version_id].append((rate.tier_min_context, rate.usage_class, rate.rate))
    return {
        version.card.name: CardPrices.build(version.pk, version.request_fee, rates[version.pk], version.batch_bp)
        for version in versions
    }


def prices_change_at(moment: datetime) -> datetime | None:
    """Return when the next published price comes into force after `moment`; None when none is published."""
    coming = RateCardVersion.objects.filter(published_at__isnull=False, effective_from__gt=moment)
    first: datetime | None = coming.aggregate(first=Min("effective_from"))["first"]
    return first


@dataclass(frozen=True, slots=True)
class BillLine:
    """The cost of one usage class of a request: `rate` in µcr per million tokens as listed, `amount` in µcr.

    The class ``request`` is the fee of a request that ran; it has no tokens and no rate.
    """

    usage_class: str
    tokens: int
    rate: int
    amount: int


def bill_of(record: UsageRecord) -> list[BillLine]:
    """Return the lines of a request's charge by its own card version; their amounts add up to the charge exactly.

    Classes without tokens have none, and so has a request that was charged nothing.
    """
    version = RateCardVersion.objects.filter(pk=record.card_version).first()
    classes = {name: tokens for name in CLASSES if (tokens := getattr(record, f"{name}_tokens"))}
    if version is None or not classes or not record.charge:
        return []
    rates = Rate.objects.filter(version=version).values_list("tier_min_context", "usage_class", "rate")
    card = CardPrices.build(version.pk, version.request_fee, rates)
    listed = card.rates_for(context_of(classes))
    parts = shares(classes, card, record.multiplier_bp)
    return [BillLine(name, classes.get(name, 0), listed.get(name, 0), part) for name, part in parts.items()]
