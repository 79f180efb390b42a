"""Figures as pages show them: credits, counts, moments, ids. Each is exact where it is pointed at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.html import format_html

from base.units import MICRO, format_credits


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


def amount(micro: int | None, *, is_charge: bool = True) -> str:
    """Return credits with three significant figures, whole ones all shown, and exactly where they are pointed at.

    A charge is rounded up, a balance down.
    """
    if micro is None:
        return "–"
    exact = format_credits(micro, separator=",")
    step = 1
    while abs(micro) >= 1000 * step and step < MICRO:
        step *= 10
    steps = -(-micro // step) if is_charge else micro // step
    whole, part = divmod(abs(steps) * step, MICRO)
    decimals = f"{part:06d}".rstrip("0")
    shown = ("-" if steps < 0 else "") + f"{whole:,}" + (f".{decimals}" if decimals else "")
    html = '<data class="amount" value="{}" title="{} credits">{}</data>'
    return format_html(html, format_credits(micro), exact, shown)


def models_alone(restriction: str) -> str:
    """Return in words which models' requests a grant pays for; "" where it pays for all."""
    names = restriction.split("\n")
    return f"for {', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]} alone" if restriction else ""


def grouped(number: int) -> str:
    """Return a whole number with thousands separators."""
    return f"{number:,}"


def short(number: int) -> str:
    """Return a whole number short enough for an axis: 950, 1.2K, 40M."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return str(number)


def moment(at: datetime | None, none: str = "–") -> str:
    """Return a moment in UTC, which static/screens.js shows in the reader's own zone."""
    if at is None:
        return none
    at = at.astimezone(UTC)
    year = "" if at.year == timezone.now().year else f" {at.year}"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}{}, {} UTC</time>',
        at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        at.strftime("%Y-%m-%d %H:%M:%S"),
        f"{at.day} {at:%b}",
        year,
        at.strftime("%H:%M:%S"),
    )


FIRST_YEAR = 2000


def is_of_our_time(at: datetime) -> bool:
    """Return whether something may have been then: what an address asks for beyond that counts as not given."""
    return datetime(FIRST_YEAR, 1, 1, tzinfo=UTC) <= at <= timezone.now() + timedelta(days=2)


def day(on: date | None, none: str = "–") -> str:
    """Return a day, of UTC as all days of usage and grants are."""
    if on is None:
        return none
    return f"{on.day} {on:%b %Y}"


def duration(milliseconds: float | None) -> str:
    """Return a duration in the unit that suits it: 85 ms, 2.4 s, 3 min 20 s, 5 h, 12 d."""
    if milliseconds is None:
        return "–"
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def short_id(identifier: UUID | str | None) -> str:
    """Return the end of an id, which is where two of the same day differ, with a button that copies all of it."""
    if not identifier:
        return "–"
    text = str(identifier)
    return format_html(
        '<span class="id"><code title="{0}">…{1}</code>'
        '<button type="button" data-copy-text="{0}" aria-label="Copy the id {0}">Copy</button></span>',
        text,
        text[-8:],
    )


def cell(text: str) -> str:
    """Return `text` so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def share(part: float, whole: float) -> str:
    """Return how many of a hundred, never rounded to nothing; "–" without any."""
    if not whole:
        return "–"
    found = 100 * part / whole
    return "< 0.1 %" if 0 < found < 0.1 else f"{found:.1f} %" if found else "0 %"


def html_of(kind: str, value: Any) -> str:
    """Return a table cell's value by its column's kind: see `control.screens.tables`."""
    show = _SHOWN.get(kind, _plain)
    return show(value)


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> str:
    return "–" if value is None else grouped(value) if isinstance(value, int) else str(value)


def _balance(value: int | None) -> str:
    return amount(value, is_charge=False)


_SHOWN: dict[str, Callable[[Any], str]] = {
    "credits": amount,
    "balance": _balance,
    "number": _number,
    "time": moment,
    "day": day,
    "duration": duration,
    "id": short_id,
}
