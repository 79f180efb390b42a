"""Values for a ticket's slots, from large spaces; each split has values of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random

from desk.training.texts import Split, words

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
_CURRENCIES = ("{} EUR", "€{}", "${}", "{} USD", "£{}", "{} euros")


def _order(random: Random, split: Split) -> str:
    # Even numbers are training's, odd ones held out: the forms are the same, no value is.
    number = random.randrange(10_000, 9_999_999) * 2 + (split == "held_out")
    return random.choice(("{}", "#{}", "ORD-{}", "SO{}", "A-{}", "W{}")).format(number)


def _invoice(random: Random, split: Split) -> str:
    number = random.randrange(1000, 499_999) * 2 + (split == "held_out")
    return random.choice(("INV-{}", "R{}", "2026/{}", "RE-{}")).format(number)


def _amount(random: Random, split: Split) -> str:
    cents = random.randrange(200, 120_000) * 2 + (split == "held_out")
    written = f"{cents // 100}.{cents % 100:02}" if random.random() < 0.7 or split == "held_out" else str(cents // 100)
    return random.choice(_CURRENCIES).format(written)


def _date(random: Random, split: Split) -> str:
    year = random.choice((2024, 2025)) if split != "held_out" else 2026
    month, day = random.randrange(1, 12), random.randrange(1, 29)
    name = MONTHS[month - 1]
    return random.choice(
        (
            f"{year}-{month:02}-{day:02}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{day:02}/{month:02}/{year}",
            f"{day}.{month}.{year}",
        )
    )


def _phone(random: Random, split: Split) -> str:
    country = random.choice(("+49", "+44", "+1", "+33") if split != "held_out" else ("+47", "+39", "+351"))
    groups = [str(random.randrange(100, 1000)), str(random.randrange(100, 1000)), str(random.randrange(1000, 10_000))]
    return f"{country} {random.choice((' ', '-')).join(groups)}"


def _name(random: Random, split: Split) -> str:
    return f"{random.choice(words('first_names', split))} {random.choice(words('last_names', split))}"


def _email(random: Random, split: Split) -> str:
    # Names may have more than two words, hyphens and apostrophes.
    words_of_name = re.sub(r"[^\w ]", "", _name(random, split).lower()).split()
    first, last = words_of_name[0], words_of_name[-1]
    person = random.choice((f"{first}.{last}", f"{first[0]}{last}", f"{last}{random.randrange(1, 99)}", first))
    return f"{person}@{random.choice(words('domains', split))}"


def _product(random: Random, split: Split) -> str:
    product = random.choice(words("products", split))
    if split == "held_out" or random.random() < 0.6:
        return product
    return f"{random.choice(words('product_adjectives', split))} {product}"


def _one_of(kind: str) -> Callable[[Random, Split], str]:
    return lambda random, split: random.choice(words(kind, split))


FILLERS: Mapping[str, Callable[[Random, Split], str]] = {
    "order": _order,
    "invoice": _invoice,
    "amount": _amount,
    "date": _date,
    "phone": _phone,
    "name": _name,
    "email": _email,
    "product": _product,
    "city": _one_of("cities"),
    "plan": _one_of("plans"),
}
"""A maker of values for each slot, which is also the name of its field."""
