"""Stacked bars and sparklines, as plain geometry for a template's SVG, with the same numbers as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 900
HEIGHT = 200
MOST_NAMED = 5
OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name, the period or condition that it is of, and where it leads."""

    name: str
    value: Any
    note: Any = ""
    href: str = ""
    spark: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar; `series` counts from 1 and picks the colour."""

    series: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One bucket: a day, an hour."""

    name: str
    x: float  # of the whole column, which is what a pointer meets
    width: float
    total: int
    total_text: str
    parts: tuple[Part, ...]
    texts: tuple[str, ...]  # by series, zeros included: the table's row
    tip: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """All bars from left to right, the names of the series, and the value at the top of the axis."""

    bars: tuple[Bar, ...]
    names: tuple[str, ...]
    top: int
    top_text: str
    middle_text: str
    unit: str = "Day"

    @property
    def series(self) -> list[tuple[int, str]]:
        """The series with their numbers, for the legend."""
        return list(enumerate(self.names, start=1))

    @property
    def first_text(self) -> str:
        """The first bucket's name."""
        return self.bars[0].name if self.bars else ""

    @property
    def last_text(self) -> str:
        """The last bucket's name."""
        return self.bars[-1].name if self.bars else ""


def stacked(
    cells: Mapping[tuple[str, str], int],
    buckets: Sequence[str],
    *,
    show: Callable[[int], str],
    axis: Callable[[int], str] | None = None,
    href: Callable[[str], str] | None = None,
    order: Sequence[str] = (),
    unit: str = "Day",
) -> Chart:
    """Return the chart of the values by bucket and series: past the five largest series is Other.

    `show` writes a value, `axis` one of the axis; `href` is where a bar leads; `order` holds the series in their order
    where it isn't that of their sums.
    """
    totals: dict[str, int] = defaultdict(int)
    for (_, series), value in cells.items():
        totals[series] += value
    ranked = [name for name in order if name in totals] or sorted(totals, key=lambda name: (-totals[name], name))
    named = ranked[:MOST_NAMED]
    rest = ranked[MOST_NAMED:]
    names = (*named, OTHER) if rest else tuple(named)
    by_bucket = []
    for bucket in buckets:
        values = [cells.get((bucket, name), 0) for name in named]
        if rest:
            values.append(sum(cells.get((bucket, name), 0) for name in rest))
        by_bucket.append(tuple(values))
    top = _round_top(max(map(sum, by_bucket), default=0))
    step = WIDTH / max(1, len(buckets))
    bars = tuple(
        _bar(bucket, (number * step, step, top), values, names, show, "" if href is None else href(bucket))
        for number, (bucket, values) in enumerate(zip(buckets, by_bucket, strict=True))
    )
    axis = axis or show
    return Chart(bars, names, top, axis(top), axis(top // 2), unit)


def _bar(  # noqa: PLR0917
    name: str,
    place: tuple[float, float, int],  # its left edge, its width, and the value that is as high as the chart
    values: tuple[int, ...],
    names: tuple[str, ...],
    show: Callable[[int], str],
    href: str,
) -> Bar:
    """Return one bar, its pieces from the bottom up."""
    x, step, top = place
    parts: list[Part] = []
    below = 0
    left, width = round(x + step * 0.12, 1), round(step * 0.76, 1)
    for number, value in enumerate(values, start=1):
        if value:
            height = value / top * HEIGHT
            parts.append(Part(number, left, round(HEIGHT - (below + value) / top * HEIGHT, 1), width, round(height, 1)))
            below += value
    texts = tuple(map(show, values))
    lines = [f"{series}: {text}" for series, text, value in zip(names, texts, values, strict=True) if value and series]
    tip = "\n".join((f"{name}: {show(sum(values))}", *(lines if len(names) > 1 else ())))
    return Bar(name, round(x, 1), round(step, 1), sum(values), show(sum(values)), tuple(parts), texts, tip, href)


def spark(values: Sequence[float]) -> str:
    """Return the points of a sparkline in a box of 100 by 28; empty without two values."""
    if len(values) < 2:
        return ""
    top = max(values) or 1
    step = 100 / (len(values) - 1)
    return " ".join(f"{number * step:.1f},{27 - value / top * 26:.1f}" for number, value in enumerate(values))


def _round_top(highest: int) -> int:
    """Return the least 1, 2, 4, 6 or 8 times a power of ten that no bar is higher than; its half is even too."""
    if highest <= 2:
        return 2
    unit: int = 10 ** (len(str(highest)) - 1)
    return next(factor * unit for factor in (1, 2, 4, 6, 8, 10) if factor * unit >= highest)
