"""Estimates of a request's cost with a model, before its prompt is tokenised."""

from __future__ import annotations

from billing import rating
from billing.rating import WHOLE_BP, CardPrices
from routing.types import Price

USUAL_OUTPUT = 256  # tokens of an answer that the client doesn't bound


def estimate(card: CardPrices, multiplier_bp: int, prompt_tokens: int, max_tokens: int | None) -> Price:
    """Return the price of a prompt of about so many tokens, none of it cached, with an answer as long as it may be."""
    classes = {"input": prompt_tokens, "output": USUAL_OUTPUT if max_tokens is None else max_tokens}
    rate = card.rates_for(prompt_tokens)["output"]
    return Price(-(-rate * multiplier_bp // WHOLE_BP), rating.charge(classes, card, multiplier_bp))
