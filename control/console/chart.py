"""Stacked bars per day, as plain geometry for the template's SVG, and the same numbers as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from billing.selectors.usage import UsageSum

WIDTH = 900
HEIGHT = 200
MOST_NAMED = 5
OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar; `series` counts from 1 and picks the colour."""

    name: str
    series: int
    value: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One day."""

    day: date
    x: float
    width: float
    total: int
    parts: tuple[Part, ...]
    values: tuple[int, ...]  # by series, zeros included: the table's row


@dataclass(frozen=True, slots=True)
class Chart:
    """All bars from left to right, the names of the series, and the value at the top of the axis."""

    bars: tuple[Bar, ...]
    names: tuple[str, ...]
    top: int

    @property
    def series(self) -> list[tuple[int, str]]:
        """The series with their numbers, for the legend."""
        return list(enumerate(self.names, start=1))

    @property
    def middle(self) -> int:
        """The value half way up the axis."""
        return self.top // 2


def stacked(rows: Sequence[UsageSum], first: date, last: date, value: Callable[[UsageSum], int]) -> Chart:
    """Return the chart of `value` per day and model from `first` to `last`; past the five largest models is Other."""
    totals: dict[str, int] = defaultdict(int)
    cells: dict[tuple[date, str], int] = defaultdict(int)
    for row in rows:
        totals[row.model or ""] += value(row)
        cells[row.day, row.model or ""] += value(row)
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    named = ranked[:MOST_NAMED]
    names = (*named, OTHER) if len(ranked) > MOST_NAMED else tuple(named)
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    by_day = []
    for day in days:
        values = [cells[day, name] for name in named]
        if len(names) > len(named):
            values.append(sum(cells[day, name] for name in ranked[MOST_NAMED:]))
        by_day.append(tuple(values))
    top = _round_top(max(map(sum, by_day), default=0))
    step = WIDTH / len(days)
    bars = tuple(
        Bar(
            day=day,
            x=round(number * step + step * 0.12, 2),
            width=round(step * 0.76, 2),
            total=sum(values),
            parts=_parts(values, names, top),
            values=values,
        )
        for number, (day, values) in enumerate(zip(days, by_day, strict=True))
    )
    return Chart(bars, names, top)


def _parts(values: tuple[int, ...], names: tuple[str, ...], top: int) -> tuple[Part, ...]:
    """Return a bar's pieces from the bottom up."""
    parts: list[Part] = []
    below = 0
    for number, amount in enumerate(values, start=1):
        if amount:
            height = amount / top * HEIGHT
            y = HEIGHT - (below + amount) / top * HEIGHT
            parts.append(Part(names[number - 1], number, amount, round(y, 2), round(height, 2)))
            below += amount
    return tuple(parts)


def _round_top(highest: int) -> int:
    """Return the least 1, 2, 4, 6 or 8 times a power of ten that no bar is higher than; its half is even too."""
    if highest <= 2:
        return 2
    unit: int = 10 ** (len(str(highest)) - 1)
    return next(factor * unit for factor in (1, 2, 4, 6, 8, 10) if factor * unit >= highest)
