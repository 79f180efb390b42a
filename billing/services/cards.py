"""Rate cards: publishing prices, and the cards of the first models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from base import clock
from base.ids import uuid7
from billing.models import Rate, RateCard, RateCardVersion
from billing.rating import CardPrices, CardPricesError
from billing.services.errors import CardError

DEFAULT_BATCH_BP = 5_000
"""Requests of batches cost half."""

Tiers = Mapping[int, Mapping[str, int]]
"""Least context of the tier → usage class → µcr per million tokens."""

DEFAULT_RATES: Mapping[str, Mapping[str, int]] = {
    "chat": {"input": 10_000_000, "cache_read": 1_000_000, "output": 40_000_000},
    "embedding": {"input": 2_000_000, "cache_read": 200_000, "output": 0},
    "score": {"input": 2_000_000, "cache_read": 200_000, "output": 0},
    "classification": {"input": 3_700_000, "cache_read": 370_000, "output": 0},
    "adapter": {"input": 10_530_000, "cache_read": 1_053_000, "output": 42_120_000},
}
"""By kind of model: 10, 1 and 40 credits per million tokens for chat, 2 for embeddings and scores, 3.7 to classify.

The specialists that we ship cost what they take (docs/benchmarks.md). A second of a label costs the same from each
model that can write one: the head takes a quarter of the guided general model's time, so its tokens have the rate at
which a label costs a quarter. A token of the adapter costs 1.053 times one of its base, since 0.95 times as many a
second were measured, at 32 streams; by its time for labels it would be 1.04.
"""

DEFAULT_CARDS: Mapping[str, str] = {
    "smollm2-135m-instruct": "chat",
    "all-minilm-l6-v2": "embedding",
    "sluice-desk": "adapter",
    "sluice-desk-labels": "classification",
}
"""The cards of the first models, with the kind whose default rates they have."""


def resolved(rates: Tiers, request_fee: int, batch_bp: int = DEFAULT_BATCH_BP) -> CardPrices:
    """Return prices as they would be published, every class of every tier with its rate, under a new id.

    Cache classes without a rate take input's, reasoning takes output's. Raises CardError if a rate is missing or
    wrong, or a cached token would cost more than an uncached one.
    """
    flat = [(start, name, rate) for start, tier in rates.items() for name, rate in tier.items()]
    try:
        prices = CardPrices.build(uuid7(), request_fee, flat, batch_bp)
    except CardPricesError as error:
        raise CardError(f"rates: {error}") from error
    for tier in prices.tiers:
        if tier.rates["cache_read"] > tier.rates["input"]:
            raise CardError(f"cache_read: costs more than input from context {tier.min_context}")
    return prices


@transaction.atomic
def publish(
    card: str,
    rates: Tiers,
    effective_from: datetime | None = None,
    *,
    request_fee: int = 0,
    batch_bp: int = DEFAULT_BATCH_BP,
    note: str = "",
) -> RateCardVersion:
    """Publish new prices of the card (created if need be), in force from `effective_from` on, by default now; they
    can't be changed.

    The version is stored with a rate for every class. Raises CardError as `resolved` does, and if the moment is in the
    past or not later than the card's last version.
    """
    now = clock.now()
    moment = effective_from or now
    prices = resolved(rates, request_fee, batch_bp)
    owner, _ = RateCard.objects.get_or_create(name=card)
    RateCard.objects.filter(pk=owner.pk).update(name=card)  # the row's lock: one publication of a card at a time
    last = RateCardVersion.objects.filter(card=owner).order_by("-effective_from").first()
    if moment < now:
        raise CardError("effective_from: prices can't be changed for the past")
    if last is not None and last.effective_from >= moment:
        raise CardError(f"effective_from: must be later than the last version's, {last.effective_from.isoformat()}")
    version = RateCardVersion.objects.create(
        id=prices.id, card=owner, effective_from=moment, request_fee=request_fee, batch_bp=batch_bp, note=note
    )
    Rate.objects.bulk_create(
        Rate(version=version, tier_min_context=tier.min_context, usage_class=name, rate=rate)
        for tier in prices.tiers
        for name, rate in tier.rates.items()
    )
    version.published_at = now
    version.save(update_fields=["published_at"])
    return version


@transaction.atomic
def ensure_card(name: str, kind: str) -> None:
    """Publish a card at the default rates for a kind of model, unless it has prices."""
    if not RateCardVersion.objects.filter(card__name=name, published_at__isnull=False).exists():
        publish(name, {0: DEFAULT_RATES[kind]}, note="default rates")


@transaction.atomic
def ensure_default_cards() -> None:
    """Publish the cards of the first models that have no version yet; never changes one that has."""
    for name, kind in DEFAULT_CARDS.items():
        if not RateCardVersion.objects.filter(card__name=name).exists():
            publish(name, {0: DEFAULT_RATES[kind]}, note="shipped with Sluice")
