"""The unit of credit: integer micro-credits (µcr) everywhere inside, decimal credits in forms, headers and pages; and
money, in its currency's minor units.
"""

from __future__ import annotations

import re
from functools import lru_cache

MICRO = 1_000_000
LARGEST = 2**63 - 1

_CREDITS = re.compile(r"(?P<sign>-?)(?P<whole>\d{1,13})(?:\.(?P<part>\d{1,6}))?", re.ASCII)


@lru_cache(1024)  # an answer says its charge twice, and the same limits as the answer before
def format_credits(micro: int, *, separator: str = "") -> str:
    """Return `micro` µcr as decimal credits, exactly: no exponent, no trailing zeros after the point.

    `separator` ("," for people) groups the digits of whole credits by three.
    """
    whole, part = divmod(abs(micro), MICRO)
    sign = "-" if micro < 0 else ""
    return f"{sign}{whole:,}".replace(",", separator) + (f".{part:06d}".rstrip("0") if part else "")


def parse_credits(text: str) -> int:
    """Return the µcr that `text` (decimal credits, at most six decimals) stands for, exactly; else ValueError."""
    found = _CREDITS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an amount of credits with at most six decimals")
    micro = int(found["whole"]) * MICRO + int((found["part"] or "").ljust(6, "0"))
    if micro > LARGEST:
        raise ValueError(f"{text!r} is more credits than an account can hold")
    return -micro if found["sign"] else micro


_WHOLE = frozenset(
    {"BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF"}
)
"""Currencies without minor units; most others have a hundred."""


def format_money(minor: int, currency: str) -> str:
    """Return an amount of money as people write it."""
    if currency in _WHOLE:
        return f"{minor:,} {currency}"
    return f"{minor // 100:,}.{minor % 100:02d} {currency}"


_MONEY = re.compile(r"(?P<whole>\d{1,9})(?:\.(?P<part>\d\d))? (?P<currency>[A-Z]{3})", re.ASCII)


def parse_money(text: str) -> tuple[int, str]:
    """Return the minor units and the currency of `text`, as 49.90 EUR or 500 JPY; else ValueError."""
    found = _MONEY.fullmatch(text.strip())
    if found is None or (found["part"] and found["currency"] in _WHOLE):
        raise ValueError(f"{text!r} is no amount of money such as 49.90 EUR")
    whole, currency = int(found["whole"]), found["currency"]
    return (whole if currency in _WHOLE else 100 * whole + int(found["part"] or 0)), currency
