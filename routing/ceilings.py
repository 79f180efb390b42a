"""Whether a model, or a deployment of it, keeps to what its rule allows of price and time to first token. Pure."""

from __future__ import annotations

from math import inf

from routing.catalogue import Ceiling
from routing.types import Price

MICRO = 1_000_000


def over_price(ceiling: Ceiling | None, price: Price | None) -> tuple[str, float]:
    """Return why the price is too high and how many times the ceiling it is; "" and at most 1 where it is not.

    A model without a price in force can't be charged for: it holds no ceiling, not even one of time.
    """
    if ceiling is None:
        return "", 0.0
    if price is None:
        return "no price of it is in force", inf
    why, excess = "", 0.0
    for is_at, most, what in (
        (price.per_million, ceiling.price, "credits per million output tokens"),
        (price.request, ceiling.request_price, "credits for this request"),
    ):
        if most is None:
            continue
        share = is_at / most if most else float(is_at > 0) + is_at
        if is_at > most and share > excess:
            why = f"it costs {credits_of(is_at)} {what}, the ceiling is {credits_of(most)}"
        excess = max(excess, share)
    return why, excess


def over_time(ceiling: Ceiling | None, ttft_ms: int | None) -> tuple[str, float]:
    """Return why the time to first token is too long, likewise; one that isn't measured yet holds the ceiling."""
    if ceiling is None or ceiling.ttft_ms is None or ttft_ms is None:
        return "", 0.0
    excess = ttft_ms / ceiling.ttft_ms if ceiling.ttft_ms else 1.0 + ttft_ms
    if ttft_ms <= ceiling.ttft_ms:
        return "", excess
    times = f"p{ceiling.ttft_percentile} of its time to first token is {ttft_ms:,} ms"
    return f"{times}, the ceiling is {ceiling.ttft_ms:,} ms", excess


def told(ceiling: Ceiling) -> str:
    """Return the ceiling as words."""
    parts = []
    if ceiling.price is not None:
        parts.append(f"{credits_of(ceiling.price)} credits per million output tokens")
    if ceiling.request_price is not None:
        parts.append(f"{credits_of(ceiling.request_price)} credits for the request")
    if ceiling.ttft_ms is not None:
        parts.append(f"{ceiling.ttft_ms:,} ms to the first token (p{ceiling.ttft_percentile})")
    return "at most " + ", ".join(parts)


def credits_of(micro: int) -> str:
    """Return µcr as credits, without zeros at the end."""
    return f"{micro // MICRO}.{micro % MICRO:06}".rstrip("0").rstrip(".")
