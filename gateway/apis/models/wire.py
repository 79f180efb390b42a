"""Models as clients see them: OpenAI's fields, and beside them kinds, context and prices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from billing.rating import CardPrices
from gateway.wire.usage import credits_text
from inference.types import Feature, Kind
from routing.catalogue import ModelEntry

_BASIS = 10_000


class TierPrice(msgspec.Struct):
    """Credits per million tokens of each class, from `min_context` tokens of context on; exact decimal strings."""

    min_context: int
    credits_per_million: dict[str, str]


class ModelPricing(msgspec.Struct):
    """The model's prices on the caller's plan; requests of batches cost `batch_multiplier` of the tiers' rates."""

    request_fee: str
    tiers: list[TierPrice]
    batch_multiplier: str


class Capabilities(msgspec.Struct, kw_only=True):
    """A model's abilities wherever it is served now; false where unknown. `auto` has those that all have."""

    tools: bool
    reasoning: bool
    structured_outputs: bool
    vision: bool
    embeddings: bool


class ModelCard(msgspec.Struct, kw_only=True):
    """One model. `auto` is a card too: it has no price of its own.

    `context_length` (`max_model_len` to vLLM's clients) bounds prompt and answer together, `max_output_tokens` the
    answer alone; null where the model makes none.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str
    kinds: list[str]
    context_length: int
    max_model_len: int
    max_output_tokens: int | None
    input_modalities: list[str]
    output_modalities: list[str]
    capabilities: Capabilities
    pricing: ModelPricing | None


class ModelList(msgspec.Struct):
    """All models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class Served:
    """How a model is served now: in which context, how long one answer may be, and what it can do; None: not known."""

    context: int | None
    max_output: int | None
    features: frozenset[Feature]
    sees: bool


UNKNOWN = Served(None, None, frozenset(), sees=False)


def model_card(entry: ModelEntry, prices: CardPrices | None, multiplier_bp: int, served: Served = UNKNOWN) -> ModelCard:
    """The card of a model of the catalogue; prices include the plan's multiplier, rounded up to a µcr."""
    # The engine may have fitted less than the catalogue says.
    context = entry.context_length if served.context is None else min(entry.context_length, served.context)
    chats = Kind.CHAT in entry.kinds
    return ModelCard(
        id=entry.name,
        created=entry.created,
        owned_by="sluice",
        description=entry.description,
        kinds=sorted(entry.kinds),
        **_lengths(context, min(served.max_output or context, context - 1) if chats else None),
        **_modalities(entry.kinds, sees=served.sees),
        capabilities=Capabilities(
            **{feature.value: chats and feature in served.features for feature in Feature},
            vision=served.sees,
            embeddings=Kind.EMBEDDING in entry.kinds,
        ),
        pricing=None if prices is None else _pricing(prices, multiplier_bp),
    )


def auto_card(cards: Sequence[ModelCard]) -> ModelCard:
    """The card of `auto`, which chooses one of `cards` for each request and is charged as that model."""
    chats = [card for card in cards if Kind.CHAT in card.kinds]
    outputs = [card.max_output_tokens for card in chats if card.max_output_tokens is not None]
    can = {
        feature.value: bool(chats) and all(getattr(card.capabilities, feature.value) for card in chats)
        for feature in Feature
    }
    sees = any(card.capabilities.vision for card in chats)  # an image goes to one of those
    return ModelCard(
        id="auto",
        created=0,
        owned_by="sluice",
        description="Chooses a model by plan and task; charged as the model that was chosen.",
        kinds=["chat", "classification", "embedding", "score"],
        **_lengths(max((card.context_length for card in cards), default=0), max(outputs, default=None)),
        **_modalities(("chat", "embedding"), sees=sees),
        capabilities=Capabilities(**can, vision=sees, embeddings=any(card.capabilities.embeddings for card in cards)),
        pricing=None,
    )


def _lengths(context: int, output: int | None) -> dict[str, Any]:
    return {"context_length": context, "max_model_len": context, "max_output_tokens": output}


def _modalities(kinds: Collection[str], *, sees: bool) -> dict[str, Any]:
    made = (("text", Kind.CHAT), ("embedding", Kind.EMBEDDING))
    return {
        "input_modalities": ["text", "image"] if sees else ["text"],
        "output_modalities": [name for name, kind in made if kind in kinds],
    }


def _pricing(prices: CardPrices, multiplier_bp: int) -> ModelPricing:
    return ModelPricing(
        request_fee=credits_text(prices.request_fee) or "0",
        tiers=[
            TierPrice(tier.min_context, {name: _price(rate, multiplier_bp) for name, rate in tier.rates.items()})
            for tier in prices.tiers
        ],
        batch_multiplier=f"{prices.batch_bp / _BASIS:g}",
    )


def _price(micro: int, multiplier_bp: int) -> str:
    return credits_text(-(-micro * multiplier_bp // _BASIS)) or "0"
