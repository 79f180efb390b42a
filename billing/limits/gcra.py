"""The generic cell rate algorithm in integer microseconds: what a bucket costs, allows and has left.

A bucket is one number, its theoretical arrival time `tat`: the moment at which it is full again. Everything that a
store needs beyond comparing and storing that number is computed here, so that all stores decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from billing.limits.types import Bucket, BucketState, Impossible, Limited, Take, Taken


def cost_us(bucket: Bucket, cost: int) -> int:
    """Return the microseconds that `cost` units are worth, rounded up (so a negative cost gives back rounded down)."""
    return -(-cost * bucket.period_us // bucket.limit)


def burst_us(bucket: Bucket) -> int:
    """Return the microseconds that `tat` may lie ahead of now: a full bucket's worth."""
    return cost_us(bucket, bucket.burst)


def taken_at(tat: int, now: int, spent_us: int) -> int:
    """Return the `tat` after `spent_us` were taken (given back when negative; a `tat` in the past is a full bucket)."""
    return max(tat, now) + spent_us


def wait_us(bucket: Bucket, tat: int, now: int) -> int:
    """Return how long after `now` this `tat` would have been allowed: 0 or less when it is allowed now."""
    return tat - now - burst_us(bucket)


def state_of(bucket: Bucket, tat: int, now: int) -> BucketState:
    """Return the bucket's state: the most units at once, those left now, and microseconds until it is full again."""
    ahead = max(tat - now, 0)
    left = (burst_us(bucket) - ahead) * bucket.limit // bucket.period_us
    return BucketState(name=bucket.name, limit=bucket.burst, remaining=min(max(left, 0), bucket.burst), reset_us=ahead)


def impossible(takes: Sequence[Take]) -> Impossible | None:
    """Return the first bucket whose burst is less than what is asked of it, None where there is none."""
    for take in takes:
        # A cost within the burst takes no longer than it, so that the two are seldom worked out.
        if take.cost > take.bucket.burst and cost_us(take.bucket, take.cost) > burst_us(take.bucket):
            return Impossible(name=take.bucket.name, burst=take.bucket.burst, cost=take.cost)
    return None


def decide(
    takes: Sequence[Take], tats: Mapping[str, int], lease_wait_us: int, now: int
) -> tuple[Taken | Limited, dict[str, int]]:
    """Return what becomes of `takes` when buckets stand at `tats` (missing: full), and each bucket's `tat` after it.

    `lease_wait_us` is how long until the lease can be had, 0 when it can be had now. Of several reasons to refuse, the
    one that takes longest to pass is named.
    """
    after: dict[str, int] = {}
    waits = [(lease_wait_us, "concurrency")]
    for take in takes:
        tat = after.get(take.bucket.key, tats.get(take.bucket.key, now))
        after[take.bucket.key] = tat = taken_at(tat, now, cost_us(take.bucket, take.cost))
        waits.append((wait_us(take.bucket, tat, now), take.bucket.name))
    retry_us, name = max(waits)
    if retry_us > 0:
        after = {take.bucket.key: tats.get(take.bucket.key, now) for take in takes}
    states = tuple([state_of(take.bucket, after[take.bucket.key], now) for take in takes])
    if retry_us > 0:
        return Limited(name=name, retry_us=retry_us, states=states), after
    return Taken(states=states), after
