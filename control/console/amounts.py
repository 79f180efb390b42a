"""Amounts as pages show them; what must be exact (exports, details, titles) uses `format_credits`."""

from __future__ import annotations

from base.units import MICRO


def show_credits(micro: int) -> str:
    """Return a balance rounded down, so that it never shows more than there is.

    Two decimals from 100 credits on, four from 1 on, below that all six; `credits` in static/chat/numbers.js does the
    same.
    """
    return _show(micro, micro // _step(micro))


def show_charge(micro: int) -> str:
    """Return a charge rounded up, so that it is never shown as less than it was; decimals as in `show_credits`."""
    return _show(micro, -(-micro // _step(micro)))


def _step(micro: int) -> int:
    return 10_000 if abs(micro) >= 100 * MICRO else 100 if abs(micro) >= MICRO else 1


def _show(micro: int, steps: int) -> str:
    per_credit = MICRO // _step(micro)
    digits = len(str(per_credit)) - 1
    whole, part = divmod(abs(steps), per_credit)
    decimals = f"{part:0{digits}d}"
    if digits > 2:
        decimals = decimals.rstrip("0")
    return ("-" if steps < 0 else "") + f"{whole:,}" + (f".{decimals}" if decimals else "")
