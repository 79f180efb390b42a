"""The choice between the ready replicas of a model: by load, and by what their caches hold. Pure.

Load is counted in tokens that have to be computed (design: prefix affinity only within a window of the least load, so
that a popular beginning doesn't overload one replica; where no cache helps, the less busy of two drawn at random).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar
from uuid import UUID

import msgspec

from routing.catalogue import DeploymentEntry, ReplicaEntry

WINDOW = 2048  # tokens of load above the least within which a cached beginning decides

T = TypeVar("T")
Draw = Callable[[], float]
"""Returns a number in [0, 1)."""


class Option(msgspec.Struct, frozen=True):
    """A replica that can serve the request: its `load` in tokens, and how many of the prompt's it has cached."""

    deployment: DeploymentEntry
    replica: ReplicaEntry
    load: int = 0
    matched: int = 0

    @property
    def busyness(self) -> Fraction:
        """The load for the replica's weight."""
        return Fraction(self.load, self.replica.weight)


class Choice(msgspec.Struct, frozen=True):
    """The chosen option, and why each of the others was passed over."""

    option: Option
    passed: tuple[tuple[Option, str], ...] = ()


def drawn(weighted: Sequence[tuple[T, int]], draw: Draw) -> T:
    """Return one of several, drawn in proportion to their weights."""
    if len(weighted) == 1:
        return weighted[0][0]
    point = draw() * sum(weight for _, weight in weighted)
    for one, weight in weighted:
        if point < weight:
            return one
        point -= weight
    return weighted[-1][0]


def choose(options: Sequence[Option], draw: Draw) -> Choice:
    """Return the option that gets the request.

    Deployments of one weight are a pool; between pools the request is drawn by weight. Within the pool the option with
    the most cached tokens is taken, if its busyness is at most `WINDOW` above the least; where none has any, the less
    busy of two that are drawn by their replicas' weights.
    """
    if len(options) == 1:
        return Choice(options[0])
    pools: dict[int, list[Option]] = {}
    for option in options:
        pools.setdefault(option.deployment.weight, []).append(option)
    pool = drawn(
        [(pool, weight * len({option.deployment.id for option in pool})) for weight, pool in pools.items()], draw
    )
    passed = [
        (option, "the draw by weight chose another deployment")
        for other in pools.values()
        if other is not pool
        for option in other
    ]
    chosen, reasons = _within(pool, draw)
    passed += [(option, reasons.get(option.replica.id, "busier")) for option in pool if option is not chosen]
    return Choice(chosen, tuple(passed))


def _within(pool: Sequence[Option], draw: Draw) -> tuple[Option, dict[UUID, str]]:
    """Return the chosen option of a pool, and the special reasons against others."""
    if len(pool) == 1:
        return pool[0], {}
    least = min(option.busyness for option in pool)
    near = [option for option in pool if option.busyness <= least + WINDOW]
    reasons = {
        option.replica.id: f"too busy for its cached beginning of {option.matched} tokens"
        for option in pool
        if option.matched and option not in near
    }
    most = max(option.matched for option in near)
    if most:
        holders = [option for option in near if option.matched == most]
        busyness = min(option.busyness for option in holders)
        chosen = drawn([(one, one.replica.weight) for one in holders if one.busyness == busyness], draw)
        return chosen, reasons | {
            option.replica.id: f"has {option.matched} tokens of the prompt cached, the chosen one {most}"
            for option in near
            if option.matched < most
        }
    first = drawn([(option, option.replica.weight) for option in pool], draw)
    second = drawn([(option, option.replica.weight) for option in pool if option is not first], draw)
    chosen = min(first, second, key=lambda option: option.busyness)
    return chosen, reasons | {one.replica.id: "not drawn" for one in pool if one is not first and one is not second}
