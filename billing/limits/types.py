"""Rate limits as plain data: what a `RateStore` decides in one atomic call (GCRA in integer microseconds).

One contract suite (`tests/billing/limits/contract.py`) runs on every implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from base.units import format_credits

WAITING_US = 1_000_000  # a request that waits and has not asked again for so long is taken to be gone


class Bucket(msgspec.Struct, frozen=True):
    """A GCRA bucket: `limit` units per `period_us`, at most `burst` at once. `key` is unique for tenant and limit."""

    key: str
    name: str  # "requests", "credits" or "tokens", as in headers and errors; with "key_" before it: an API key's own
    limit: int
    period_us: int
    burst: int


class Take(msgspec.Struct, frozen=True):
    """Take `cost` units from `bucket`."""

    bucket: Bucket
    cost: int


class Lease(msgspec.Struct, frozen=True):
    """One of at most `limit` concurrent leases under `key`: `holder` has it until it is given back or `ttl_us` passes.

    Not the lease of a hold (`billing.writer.operations.LEASE_SECONDS`).
    """

    key: str
    limit: int
    holder: str
    ttl_us: int


class Waiting(msgspec.Struct, frozen=True):
    """A waiting request's claim to a lease: how long it has waited, and how many wait in its gateway's queue.

    `count` includes the request: a gateway speaks for its whole queue by the one that has waited longest.
    """

    since_us: int  # ago
    count: int


class BucketState(msgspec.Struct, frozen=True):
    """A bucket after a decision: units left now, and microseconds until it is full again."""

    name: str
    limit: int
    remaining: int
    reset_us: int


class Taken(msgspec.Struct, frozen=True):
    """All of it was taken."""

    states: tuple[BucketState, ...]


class Limited(msgspec.Struct, frozen=True):
    """Nothing was taken: bucket or lease `name` is exhausted; `retry_us` until it may pass (an estimate for leases)."""

    name: str
    retry_us: int
    states: tuple[BucketState, ...]


class Impossible(msgspec.Struct, frozen=True):
    """Nothing was taken and never can be: the cost is above bucket `name`'s burst."""

    name: str
    burst: int
    cost: int


Decision = Taken | Limited | Impossible


class RateStore(Protocol):
    """Decides rate limits for all gateways that share it. Its data may be lost: buckets then start full, no credit
    is.
    """

    @property
    def trouble(self) -> str:
        """Why limits are not quite what the plans say just now, or an empty string."""
        ...

    async def take(self, takes: Sequence[Take], lease: Lease | None = None, waiting: Waiting | None = None) -> Decision:
        """Take everything (each bucket's cost and the lease) or nothing, in one atomic step.

        With `waiting`, a request that gets no lease keeps its place before those that came later through other
        gateways; it has to ask again within `WAITING_US`, or `give_back` its lease.
        """
        ...

    async def adjust(self, bucket: Bucket, delta: int) -> None:
        """Take `delta` more units, even more than are left, or give them back when negative (never beyond full)."""
        ...

    async def renew(self, lease: Lease) -> None:
        """Let the lease end `ttl_us` from now, if it is held."""
        ...

    async def give_back(self, lease: Lease, takes: Sequence[Take] = ()) -> None:
        """End the lease, or the waiting for it, if it is held or waited for; and do to each bucket of `takes` what
        `adjust` does.
        """
        ...

    async def close(self) -> None:
        """Release what the store has open."""
        ...


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
