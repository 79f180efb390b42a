"""The operator's cost of usage: fitted to measured windows of work, priced, and turned into a proposed rate card.

    busy seconds ≈ a·input + a2·Σ input·prompt + b·output + k·Σ output·context + q·cached + r·requests

with no coefficient below zero. Money is whole µcr from the rates on: a cost is rounded once, up, like a charge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

from billing.rating import WHOLE_BP, CardPrices, context_of

TERMS = ("input", "input_context", "output", "output_context", "cached", "request")
"""Uncached tokens; each times its prompt; generated tokens; each times its context; cached tokens; requests."""

_MILLION, _MILLIARD, _HOUR = 10**6, 10**9, 3600
_PAIRS = {"input_context", "output_context"}  # priced by the milliard, the others by the million

ROUNDS = 5
"""Fits in turn, each weighted by the one before."""
USUAL_OUTPUT = 256
"""Length of an answer at which a card's rate of output is taken."""
FIRST_TIER, TIER_FACTOR = 2048, 4
DIFFERENT_PERCENT = 15
"""A context tier is proposed where a rate differs by more from the tier before."""
STEADY_PERCENT = 10
"""A measured rate that differs by no more from the one in force proposes the one in force."""


def terms_of(classes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the `TERMS` of one request's usage (tokens by class); zeros for one that used nothing."""
    prompt, cached = context_of(classes), classes.get("cache_read", 0)
    output = classes.get("output", 0) + classes.get("reasoning", 0)
    read = prompt - cached
    return (read, read * prompt, output, output * (2 * prompt + output) // 2, cached, int(prompt + output > 0))


@dataclass(frozen=True, slots=True)
class Window:
    """Measured work: the `TERMS` summed over its requests, and the seconds that the device was busy with it."""

    terms: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds per term, and each window's fitted seconds over its measured ones."""

    seconds: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def residual(self) -> float:
        """The root of the mean square of the windows' relative errors."""
        return sqrt(sum((ratio - 1) ** 2 for ratio in self.ratios) / len(self.ratios))

    def of(self, terms: Sequence[int]) -> float:
        """Return the seconds of work with those terms."""
        return sum(each * count for each, count in zip(self.seconds, terms, strict=True))

    def recovery(self, windows: Sequence[Window]) -> float:
        """Return the fitted seconds of all windows together over their measured ones."""
        return sum(self.of(one.terms) for one in windows) / sum(one.seconds for one in windows)


def fit(windows: Sequence[Window]) -> Fit:
    """Fit seconds per term to the windows, in which errors count relative to each window's fitted seconds: relative to
    its measured ones, windows that others slowed down would count for less, and all would come out too cheap.

    Raise ValueError with fewer windows than terms, or one that took no time.
    """
    if len(windows) < len(TERMS) or min(one.seconds for one in windows) <= 0:
        raise ValueError(f"a fit needs at least {len(TERMS)} windows that took some time")
    expected = [one.seconds for one in windows]
    for _ in range(ROUNDS):
        rows = [[count / per for count in one.terms] for one, per in zip(windows, expected, strict=True)]
        target = [one.seconds / per for one, per in zip(windows, expected, strict=True)]
        fitted = Fit(tuple(nnls(rows, target)), ())
        expected = [max(fitted.of(one.terms), one.seconds / 100) for one in windows]
    return Fit(fitted.seconds, tuple(fitted.of(one.terms) / one.seconds for one in windows))


def nnls(rows: Sequence[Sequence[float]], target: Sequence[float]) -> list[float]:
    """Return the x ≥ 0 for which rows·x is nearest to the target in least squares (Lawson and Hanson).

    Of columns that depend on others only some are used; a column of zeros gets 0.
    """
    width = len(rows[0])
    norms = [sqrt(sum(row[at] ** 2 for row in rows)) for at in range(width)]
    scaled = [[value / (norm or 1.0) for value, norm in zip(row, norms, strict=True)] for row in rows]
    gram = [[sum(row[left] * row[right] for row in scaled) for right in range(width)] for left in range(width)]
    aim = [sum(row[at] * wanted for row, wanted in zip(scaled, target, strict=True)) for at in range(width)]
    found, free, refused = [0.0] * width, list[int](), set[int]()
    for _ in range(100 * width):  # each round lowers the error, but for what floating point takes for it
        gradient = [aim[at] - sum(gram[at][other] * found[other] for other in free) for at in range(width)]
        rest = [at for at in range(width) if at not in free and at not in refused and gradient[at] > 1e-12 * len(rows)]
        if not rest:
            break
        best = max(rest, key=lambda at: gradient[at])
        free.append(best)
        tried = _solved(gram, aim, free)
        if tried is None or tried[-1] <= 0:  # it depends on the others
            free.pop()
            refused.add(best)
            continue
        refused.clear()
        while tried is not None and min(tried) <= 0:
            pairs = [(found[at], value) for at, value in zip(free, tried, strict=True) if value <= 0]
            step = min(had / (had - value) if had > value else 0.0 for had, value in pairs)
            for at, value in zip(free, tried, strict=True):
                found[at] += step * (value - found[at])
            gone = {at for at, value in zip(free, tried, strict=True) if value <= 0 and found[at] <= 1e-14}
            for at in gone:
                found[at] = 0.0
            free = [at for at in free if at not in gone]
            tried = _solved(gram, aim, free)
        for at, value in zip(free, tried or (), strict=True):
            found[at] = value
    return [value / (norm or 1.0) for value, norm in zip(found, norms, strict=True)]


def _solved(gram: Sequence[Sequence[float]], aim: Sequence[float], free: Sequence[int]) -> list[float] | None:
    """Return the solution of the equations of the `free` columns by elimination; None where they depend."""
    rows = [[*(gram[at][other] for other in free), aim[at]] for at in free]
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        if abs(rows[at][at]) < 1e-12:
            return None
        for below in range(at + 1, size):
            share = rows[below][at] / rows[at][at]
            rows[below] = [value - share * above for value, above in zip(rows[below], rows[at], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][other] * found[other] for other in range(at + 1, size))
        found[at] = (rows[at][size] - known) / rows[at][at]
    return found


# -- money -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """An hour of the device in µcr, energy included; the part of all hours in which it is expected to be busy; and the
    prices' share of the costs, 15,000 for one and a half times as much. Parts in basis points.
    """

    hour: int
    utilisation_bp: int = 6_000
    margin_bp: int = 12_500

    def __post_init__(self) -> None:
        if self.hour < 0:
            raise ValueError("hour: costs nothing or more")
        if not 0 < self.utilisation_bp <= WHOLE_BP:
            raise ValueError("utilisation: more than 0 and at most 100 per cent")
        if self.margin_bp < WHOLE_BP:
            raise ValueError("margin: prices are at least the costs, 1 or more")


@dataclass(frozen=True, slots=True)
class CostRates:
    """µcr per million tokens or requests; of the terms with a context, per milliard of their products."""

    input: int = 0
    input_context: int = 0
    output: int = 0
    output_context: int = 0
    cached: int = 0
    request: int = 0

    @classmethod
    def of(cls, seconds: Sequence[float], price: DevicePrice) -> CostRates:
        """Return the rates of a fit's seconds: a busy second carries its share of the idle time that is expected."""
        second = Fraction(price.hour * WHOLE_BP, _HOUR * price.utilisation_bp)
        scales = [_MILLIARD if name in _PAIRS else _MILLION for name in TERMS]
        return cls(*(round(Fraction(each) * second * scale) for each, scale in zip(seconds, scales, strict=True)))

    def cost(self, classes: Mapping[str, int]) -> int:
        """Return the µcr that a request's usage costs the operator."""
        read, read_context, output, output_context, cached, requests = terms_of(classes)
        counted = read * self.input + output * self.output + cached * self.cached + requests * self.request
        pairs = read_context * self.input_context + output_context * self.output_context
        return -(-(counted * 1000 + pairs) // _MILLIARD)

    def prices(self, context: int, margin_bp: int, *, with_cached: bool) -> dict[str, int]:
        """Return a card's rates at a prompt of that length."""

        def sold(rate: int, by_context: int, length: int) -> int:
            return -(-(rate * 1000 + by_context * length) * margin_bp // (1000 * WHOLE_BP))

        rates = {
            "input": sold(self.input, self.input_context, context),
            "output": sold(self.output, self.output_context, context + USUAL_OUTPUT // 2),
        }
        return rates | ({"cache_read": min(sold(self.cached, 0, 0), rates["input"])} if with_cached else {})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A rate card to publish: rates by least context and class, and the fee of a request."""

    tiers: Mapping[int, Mapping[str, int]]
    request_fee: int


def proposed(
    rates: CostRates, margin_bp: int, max_context: int, *, with_cached: bool, current: CardPrices | None = None
) -> Proposal:
    """Return the card of those costs: each tier at its middle context, as many tiers as differ.

    Rates near those of the `current` card stay as they are, so that measuring again changes no price by its noise.
    Longer contexts cost no less, and a cached token no more than an uncached one.
    """

    def at(context: int) -> dict[str, int]:
        return rates.prices(context, margin_bp, with_cached=with_cached)

    starts, start = [0], FIRST_TIER
    while start < max_context:
        before, here = at(starts[-1]), at(start)
        if any(abs(here[name] - rate) * 100 > DIFFERENT_PERCENT * rate for name, rate in before.items()):
            starts.append(start)
        start *= TIER_FACTOR
    tiers: dict[int, dict[str, int]] = {}
    last: Mapping[str, int] = {}
    for first, end in zip(starts, [*starts[1:], max_context], strict=True):
        here = at((first + end) // 2)
        in_force = {} if current is None else current.rates_for(first)
        kept = {name: _steady(rate, in_force.get(name)) for name, rate in here.items()}
        kept = {name: max(rate, last.get(name, 0)) for name, rate in kept.items()}
        if with_cached:
            kept["cache_read"] = min(kept["cache_read"], kept["input"])
        last = tiers[first] = kept
    fee = -(-rates.request * margin_bp // (_MILLION * WHOLE_BP))
    return Proposal(tiers, _steady(fee, None if current is None else current.request_fee))


def _steady(rate: int, in_force: int | None) -> int:
    is_near = in_force is not None and abs(rate - in_force) * 100 <= STEADY_PERCENT * in_force
    return in_force if is_near and in_force is not None else rate
