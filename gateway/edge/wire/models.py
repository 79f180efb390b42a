"""Models as clients see them: OpenAI's fields, and beside them kinds, context and prices."""

from __future__ import annotations

from typing import Literal

import msgspec

from billing.rating import CardPrices
from gateway.edge.wire.usage import credits_text
from routing.catalogue import ModelEntry

_BASIS = 10_000


class TierPrice(msgspec.Struct):
    """Credits per million tokens of each class, from `min_context` tokens of context on; exact decimal strings."""

    min_context: int
    credits_per_million: dict[str, str]


class ModelPricing(msgspec.Struct):
    """What the model costs on the caller's plan; requests of batches cost `batch_multiplier` of the tiers' rates."""

    request_fee: str
    tiers: list[TierPrice]
    batch_multiplier: str


class ModelCard(msgspec.Struct, kw_only=True):
    """One model. `auto` is a card too: it has no price of its own."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str
    kinds: list[str]
    context_length: int
    pricing: ModelPricing | None


class ModelList(msgspec.Struct):
    """All models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


def model_card(entry: ModelEntry, prices: CardPrices | None, multiplier_bp: int) -> ModelCard:
    """The card of a model of the catalogue; prices include the plan's multiplier, rounded up to a µcr."""
    return ModelCard(
        id=entry.name,
        created=entry.created,
        owned_by="sluice",
        description=entry.description,
        kinds=sorted(entry.kinds),
        context_length=entry.context_length,
        pricing=None if prices is None else _pricing(prices, multiplier_bp),
    )


def auto_card(context_length: int) -> ModelCard:
    """The card of `auto`, which chooses a model for each request and is charged as that model."""
    return ModelCard(
        id="auto",
        created=0,
        owned_by="sluice",
        description="Chooses a model by plan and task; charged as the model that was chosen.",
        kinds=["chat", "embedding"],
        context_length=context_length,
        pricing=None,
    )


def _pricing(prices: CardPrices, multiplier_bp: int) -> ModelPricing:
    return ModelPricing(
        request_fee=_price(prices.request_fee, multiplier_bp),
        tiers=[
            TierPrice(tier.min_context, {name: _price(rate, multiplier_bp) for name, rate in tier.rates.items()})
            for tier in prices.tiers
        ],
        batch_multiplier=f"{prices.batch_bp / _BASIS:g}",
    )


def _price(micro: int, multiplier_bp: int) -> str:
    return credits_text(-(-micro * multiplier_bp // _BASIS)) or "0"
