"""Odd price cards, and what they charge: with fractions, by the words of docs/credits.md, and by no code of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from math import ceil
from uuid import UUID

PROMPT = ("input", "cache_read", "cache_write_short", "cache_write_long")
ANSWER = ("output", "reasoning")
MILLION = 1_000_000
LARGEST = 2**63 - 1
HUGE = 10**15  # µcr for a million tokens: a request of a hundred costs a thousand times what most wallets ever had


@dataclass(frozen=True)
class Card:
    """One version of a card, as it was asked for: by least context, the rates that are its own."""

    tiers: Mapping[int, Mapping[str, int]]
    fee: int = 0
    batch_bp: int = 5_000
    since: datetime | None = None
    id: UUID | None = None

    def rates(self, context: int) -> dict[str, int]:
        """Return the rate of each class for a prompt of so many tokens."""
        own = self.tiers[max(start for start in self.tiers if start <= context)]
        parents = {**dict.fromkeys(PROMPT, "input"), **dict.fromkeys(ANSWER, "output")}
        return {name: own.get(name, own[parent]) for name, parent in parents.items()}

    def charge(self, tokens: Mapping[str, int], multiplier_bp: int) -> int:
        """Return the µcr for tokens by class; `multiplier_bp` is that of the plan and, for a batch, the card's part."""
        if not any(tokens.values()):
            return 0
        rates = self.rates(sum(tokens.get(name, 0) for name in PROMPT))
        exact = sum((Fraction(count * rates[name], MILLION) for name, count in tokens.items()), Fraction())
        return ceil(exact * Fraction(multiplier_bp, 10_000)) + self.fee

    def dearest(self, prompt: int, output: int, multiplier_bp: int, *, is_longest: bool = False) -> int:
        """Return the most that a prompt and an answer of so many tokens may cost; `is_longest`: the prompt may turn out
        shorter, so each class counts at the dearest of the rates that it may have.
        """
        reached = [start for start in self.tiers if start <= prompt] if is_longest else [prompt]
        rates = {name: max(self.rates(start)[name] for start in reached) for name in (*PROMPT, *ANSWER)}
        flat = Card({0: rates}, self.fee)
        splits = ({into: prompt, out: output} for into in PROMPT for out in ANSWER)
        return max(flat.charge(split, multiplier_bp) for split in splits)

    def multiplier(self, plans_bp: int, *, is_batch: bool) -> int:
        """Return a request's multiplier in basis points."""
        return ceil(Fraction(plans_bp * self.batch_bp, 10_000)) if is_batch else plans_bp

    @property
    def is_refused(self) -> bool:
        """Whether it may not be published: a cached token would cost more than a computed one."""
        return any(tier.get("cache_read", 0) > tier["input"] for tier in self.tiers.values())


def one(**rates: int) -> dict[int, dict[str, int]]:
    return {0: {name: int(rate * MILLION) for name, rate in rates.items()}}


TABLE: dict[str, Card] = {
    "plain": Card(one(input=10, cache_read=1, output=40)),
    "input dearest": Card(one(input=90, cache_read=3, output=2)),
    "cached as dear as computed": Card(one(input=30, cache_read=30, output=31)),
    "cached dearest": Card(one(input=1, cache_read=50, output=2)),
    "written dearest": Card(one(input=5, cache_read=1, cache_write_short=60, cache_write_long=90, output=7)),
    "output dearest": Card(one(input=1, output=200, reasoning=1)),
    "reasoning dearest": Card(one(input=10, output=1, reasoning=10)),
    "only reasoning": Card(one(input=0, output=0, reasoning=25)),
    "only the prompt": Card(one(input=12, output=0)),
    "nothing": Card(one(input=0, output=0)),
    "nothing but a fee": Card(one(input=0, output=0), fee=777),
    "a fee above all": Card(one(input=1, output=1), fee=123_457, batch_bp=0),
    "hardly anything": Card({0: {"input": 1, "output": 1}}, batch_bp=1),
    "crooked": Card({0: {"input": 3_333_333, "cache_read": 123_457, "output": 7_777_777}}, fee=7, batch_bp=3_333),
    "huge": Card({0: {"input": HUGE, "cache_read": 1, "output": HUGE // 3, "reasoning": HUGE}}),
    "as huge as can be": Card({0: {"input": LARGEST, "output": LARGEST}}),
    "dearer from forty on": Card({**one(input=4, output=9), 40: {"input": 8 * MILLION, "output": 90 * MILLION}}, fee=3),
    "cheaper from forty on": Card({**one(input=50, output=80), 40: {"input": 1, "output": 2, "reasoning": MILLION}}),
    "turned from sixty on": Card({**one(input=1, output=60, reasoning=5), 60: {"input": 9 * MILLION, "output": 0}}),
}
RATES = (0, 1, 999_999, MILLION, 33_333_333, 10**8, 10**12)


def drawn(dice) -> Card:
    """Return a card of the table, or one that nobody thought of."""
    if dice.random() < 0.7:
        return TABLE[dice.choice(sorted(TABLE))]
    tiers = {
        start: {
            "input": dice.choice(RATES),
            "output": dice.choice(RATES),
            **{name: dice.choice(RATES) for name in (*PROMPT[1:], "reasoning") if dice.random() < 0.4},
        }
        for start in {0, *(dice.randrange(1, 90) for _ in range(dice.randrange(3)))}
    }
    return Card(tiers, fee=dice.choice([0, 0, 1, 5_000]), batch_bp=dice.choice([0, 1, 5_000, 9_999, 10_000]))


def in_force(versions: Iterable[Card], moment: datetime) -> Card:
    """Return the last version that began by then."""
    begun = [card for card in versions if card.since is not None and card.since <= moment]
    return max(begun, key=lambda card: card.since)
