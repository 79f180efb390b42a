"""The cost of usage, in integer µcr: one rounding per charge, upwards.

Rates are µcr per million tokens. The tier is chosen by the whole context (uncached, cached and cache-written prompt
together), so cache hits never change the tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

FORMULA = 1
"""Number of the arithmetic below; usage records keep it, so that an old charge can still be recomputed after a
change.
"""

INPUT_CLASSES = ("input", "cache_read", "cache_write_short", "cache_write_long")
OUTPUT_CLASSES = ("output", "reasoning")
CLASSES = INPUT_CLASSES + OUTPUT_CLASSES
MAX_TOKENS = 2**31 - 1
"""More tokens than any request has: what `output_tokens_for` returns when output is free."""

_PARENTS = {
    "cache_read": "input",
    "cache_write_short": "input",
    "cache_write_long": "input",
    "reasoning": "output",
}
WHOLE_BP = 10_000
_SCALE = 10**6 * 10**4  # tokens per rate, times basis points


class CardPricesError(ValueError):
    """A card's rates do not price every class in every tier."""


@dataclass(frozen=True, slots=True)
class Tier:
    """The rate of every class for requests whose context is at least `min_context` tokens."""

    min_context: int
    rates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CardPrices:
    """One published card version as plain data: `tiers` rise from context 0, and each prices every class.

    `batch_bp` is what requests of batches cost of these rates, in basis points.
    """

    id: UUID
    request_fee: int
    tiers: tuple[Tier, ...]
    batch_bp: int = WHOLE_BP

    @classmethod
    def build(
        cls, identifier: UUID, request_fee: int, rates: Iterable[tuple[int, str, int]], batch_bp: int = WHOLE_BP
    ) -> CardPrices:
        """Return the prices of (min_context, class, rate) rows; a class without a rate takes its parent's.

        Cache classes fall back on input, reasoning on output. CardPricesError when a tier lacks input or output, when
        no tier starts at 0, or when a rate is negative or of an unknown class.
        """
        tiers: dict[int, dict[str, int]] = {}
        for min_context, usage_class, rate in rates:
            if usage_class not in CLASSES or rate < 0 or min_context < 0:
                raise CardPricesError(f"{usage_class} at {rate} from context {min_context} is no rate")
            tiers.setdefault(min_context, {})[usage_class] = rate
        if 0 not in tiers:
            raise CardPricesError("no tier starts at context 0")
        if request_fee < 0:
            raise CardPricesError("the request fee is negative")
        if not 0 <= batch_bp <= WHOLE_BP:
            raise CardPricesError("batches cost from 0 to 10,000 basis points of the rates")
        return cls(
            id=identifier,
            request_fee=request_fee,
            tiers=tuple(Tier(start, _resolved(start, tiers[start])) for start in sorted(tiers)),
            batch_bp=batch_bp,
        )

    def rates_for(self, context: int) -> Mapping[str, int]:
        """Return the rates (class → µcr per million tokens) of the last tier that starts at or below `context`."""
        chosen = self.tiers[0]
        for tier in self.tiers[1:]:
            if tier.min_context > context:
                break
            chosen = tier
        return chosen.rates

    def dearest_up_to(self, context: int) -> CardPrices:
        """Return prices at which nothing costs less than at these with any context up to `context`: those to hold by
        where a prompt may turn out shorter, since shorter prompts may cost more.
        """
        reached = [tier.rates for tier in self.tiers if tier.min_context <= context]
        if len(reached) == 1:
            return self
        dearest = {name: max(rates[name] for rates in reached) for name in CLASSES}
        return replace(self, tiers=(Tier(0, dearest),))


def _resolved(start: int, rates: Mapping[str, int]) -> dict[str, int]:
    for required in ("input", "output"):
        if required not in rates:
            raise CardPricesError(f"the tier from context {start} has no rate for {required}")
    return {name: rates[name] if name in rates else rates[_PARENTS[name]] for name in CLASSES}


def own_rates(rates: Mapping[str, int]) -> dict[str, int]:
    """Return `rates` without those that a class would take from its parent anyway."""
    return {name: rate for name, rate in rates.items() if name not in _PARENTS or rate != rates[_PARENTS[name]]}


def batch_multiplier(multiplier_bp: int, card: CardPrices) -> int:
    """Return the multiplier of a request of a batch, in basis points, rounded up; the request's fee has none."""
    return -(-multiplier_bp * card.batch_bp // WHOLE_BP)


def tier_multiplier(multiplier_bp: int, tier_bp: int) -> int:
    """Return the multiplier of a request in a service tier, in basis points, rounded up; the request's fee has none."""
    return -(-multiplier_bp * tier_bp // WHOLE_BP)


def charge(classes: Mapping[str, int], card: CardPrices, multiplier_bp: int) -> int:
    """Return the µcr that `classes` (tokens by class) cost; no usage costs nothing, not even the request fee."""
    _check(classes, multiplier_bp)
    if not any(classes.values()):
        return 0
    rates = card.rates_for(context_of(classes))
    product = sum([count * rates[name] for name, count in classes.items()])
    return -(-product * multiplier_bp // _SCALE) + card.request_fee


def shares(classes: Mapping[str, int], card: CardPrices, multiplier_bp: int) -> dict[str, int]:
    """Return the charge split by class (and ``request`` for the fee): whole µcr that add up to the charge exactly.

    Each class is rounded down, and what is then missing goes to the largest remainders.
    """
    total = charge(classes, card, multiplier_bp)
    rates = card.rates_for(context_of(classes))
    parts: dict[str, int] = {}
    remainders: list[tuple[int, int, str]] = []
    for position, name in enumerate(CLASSES):
        count = classes.get(name, 0)
        if count:
            parts[name], rest = divmod(count * rates[name] * multiplier_bp, _SCALE)
            remainders.append((-rest, position, name))
    fee = card.request_fee if parts else 0
    missing = total - fee - sum(parts.values())
    for _, _, name in sorted(remainders)[:missing]:
        parts[name] += 1
    if fee:
        parts["request"] = fee
    return parts


def context_of(classes: Mapping[str, int]) -> int:
    """Return the tokens of the whole prompt: uncached, cached and cache-written."""
    count = classes.get  # a loop over INPUT_CLASSES costs thrice as much, several times a request
    return count("input", 0) + count("cache_read", 0) + count("cache_write_short", 0) + count("cache_write_long", 0)


def dearest_input(prompt_tokens: int, card: CardPrices) -> dict[str, int]:
    """Return a prompt as if all of it were of its tier's most expensive input class: what a first hold must cover."""
    rates = card.rates_for(prompt_tokens)
    return {max(INPUT_CLASSES, key=lambda name: rates[name]): prompt_tokens} if prompt_tokens else {}


def dearest_output_class(context: int, card: CardPrices) -> str:
    """Return the more expensive of output and reasoning at this context (output when they are equal)."""
    rates = card.rates_for(context)
    return max(OUTPUT_CLASSES, key=lambda name: rates[name])


def output_tokens_for(amount: int, classes: Mapping[str, int], card: CardPrices, multiplier_bp: int) -> int:
    """Return the greatest n such that `classes` and n more tokens of the more expensive output class cost at most
    `amount`.

    0 also when `classes` alone cost more; MAX_TOKENS when any number fits, since output is free.
    """
    _check(classes, multiplier_bp)
    rates = card.rates_for(context_of(classes))
    budget = amount - card.request_fee
    if budget < 0:
        return 0
    if multiplier_bp == 0:
        return MAX_TOKENS
    room = budget * _SCALE // multiplier_bp - sum([count * rates[name] for name, count in classes.items()])
    if room < 0:
        return 0
    rate = max(rates["output"], rates["reasoning"])
    return min(room // rate, MAX_TOKENS) if rate else MAX_TOKENS


FORMULAS: Mapping[int, Callable[[Mapping[str, int], CardPrices, int], int]] = {1: charge}
"""The arithmetic by number, for recomputing old usage records."""


def _check(classes: Mapping[str, int], multiplier_bp: int) -> None:
    if multiplier_bp < 0:
        raise ValueError(f"a multiplier of {multiplier_bp} basis points")
    for name, count in classes.items():
        if name not in CLASSES or count < 0:
            raise ValueError(f"{count} tokens of class {name!r}")
