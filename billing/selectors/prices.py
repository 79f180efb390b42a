"""Prices in force, and what a request was charged by its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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
    rates = _rates_of(versions)
    return {
        version.card.name: CardPrices.build(version.pk, version.request_fee, rates[version.pk], version.batch_bp)
        for version in versions
    }


def _rates_of(versions: list[RateCardVersion]) -> Mapping[UUID, list[tuple[int, str, int]]]:
    rates: dict[UUID, list[tuple[int, str, int]]] = defaultdict(list)
    for rate in Rate.objects.filter(version__in=versions):
        rates[rate.version_id].append((rate.tier_min_context, rate.usage_class, rate.rate))
    return rates


def prices_change_at(moment: datetime) -> datetime | None:
    """Return when the next published price comes into force after `moment`; None when none is published."""
    coming = RateCardVersion.objects.filter(published_at__isnull=False, effective_from__gt=moment)
    first: datetime | None = coming.aggregate(first=Min("effective_from"))["first"]
    return first


@dataclass(frozen=True, slots=True)
class BillLine:
    """The cost of one usage class of a request: `rate` in µcr per million tokens as listed, `amount` in µcr.

    The class ``request`` is the fee of a request that ran, and ``refund`` what was given back of it, below zero; they
    have no tokens and no rate.
    """

    usage_class: str
    tokens: int
    rate: int
    amount: int


def bill_of(record: UsageRecord) -> list[BillLine]:
    """Return the lines of a request's charge by its own card version; their amounts add up to the charge exactly.

    Classes without tokens have none, and so has a request that cost nothing.
    """
    version = RateCardVersion.objects.filter(pk=record.card_version).first()
    classes = {name: tokens for name in CLASSES if (tokens := getattr(record, f"{name}_tokens"))}
    if version is None or not classes or not record.price:
        return []
    rates = Rate.objects.filter(version=version).values_list("tier_min_context", "usage_class", "rate")
    card = CardPrices.build(version.pk, version.request_fee, rates)
    listed = card.rates_for(context_of(classes))
    parts = shares(classes, card, record.multiplier_bp)
    lines = [BillLine(name, classes.get(name, 0), listed.get(name, 0), part) for name, part in parts.items()]
    return [*lines, BillLine("refund", 0, 0, -record.refunded)] if record.refunded else lines


@dataclass(frozen=True, slots=True)
class Coming:
    """A published version that isn't in force yet."""

    card: str
    effective_from: datetime
    prices: CardPrices


def prices_after(moment: datetime) -> list[Coming]:
    """Return the published versions that come into force after `moment`, the next first."""
    later = RateCardVersion.objects.filter(published_at__isnull=False, effective_from__gt=moment)
    versions = list(later.select_related("card").order_by("effective_from", "card__name"))
    rates = _rates_of(versions)
    return [
        Coming(
            one.card.name,
            one.effective_from,
            CardPrices.build(one.pk, one.request_fee, rates[one.pk], one.batch_bp),
        )
        for one in versions
    ]


def versions_of(card: str, most: int = 50) -> list[tuple[RateCardVersion, CardPrices]]:
    """Return the published versions of a card, the latest first, at most `most`."""
    mine = RateCardVersion.objects.filter(card__name=card, published_at__isnull=False).order_by("-effective_from")
    versions = list(mine[:most])
    rates = _rates_of(versions)
    return [(one, CardPrices.build(one.pk, one.request_fee, rates[one.pk], one.batch_bp)) for one in versions]


@dataclass(frozen=True, slots=True)
class PriceChange:
    """The rate of one class in one tier before and after, in µcr per million tokens; None where there is none."""

    context: int
    usage_class: str
    before: int | None
    after: int | None

    @property
    def difference(self) -> str:
        """The difference in per cent; of a rate that was nothing, "new" and "gone" in words."""
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        if self.before == self.after:
            return ""
        return f"{(self.after - self.before) / self.before:+.1%}" if self.before else "was free"


def price_changes(before: CardPrices | None, after: CardPrices) -> list[PriceChange]:
    """Return the change of every class in every tier of either, by tier and class."""
    old, new = ({tier.min_context: tier.rates for tier in prices.tiers} if prices else {} for prices in (before, after))
    return [
        PriceChange(start, name, old.get(start, {}).get(name), new.get(start, {}).get(name))
        for start in sorted(old | new)
        for name in CLASSES
    ]
