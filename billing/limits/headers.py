"""The headers by which a client learns of its limits: `x-ratelimit-*` and `retry-after`."""

from __future__ import annotations

from collections.abc import Iterable

from base.units import format_credits
from billing.limits.types import BucketState

_MICRO = 1_000_000


def rate_headers(states: Iterable[BucketState]) -> list[tuple[str, str]]:
    """Return limit, remaining and reset of each bucket: credits as decimals, seconds with a unit (``1.2s``).

    The limit is what can be taken at once, so that remaining never exceeds it. Of a plan's and a key's bucket the one
    is told that has less left.
    """
    tightest: dict[str, BucketState] = {}
    for state in states:
        name = state.name.removeprefix("key_")
        if name not in tightest or state.remaining < tightest[name].remaining:
            tightest[name] = state
    headers: list[tuple[str, str]] = []
    for name, state in tightest.items():
        text_of = format_credits if name == "credits" else str
        headers += [
            (f"x-ratelimit-limit-{name}", text_of(state.limit)),
            (f"x-ratelimit-remaining-{name}", text_of(state.remaining)),
            (f"x-ratelimit-reset-{name}", seconds(state.reset_us)),
        ]
    return headers


def seconds(microseconds: int) -> str:
    """Return a duration in seconds to the millisecond, rounded up: ``0s``, ``0.25s``, ``90s``."""
    milliseconds = -(-microseconds // 1_000)
    whole, rest = divmod(milliseconds, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") + "s" if rest else f"{whole}s"


def retry_after(retry_us: int) -> str:
    """Return `Retry-After`: whole seconds, rounded up, at least 1."""
    return str(max(-(-retry_us // _MICRO), 1))
