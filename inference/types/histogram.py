"""Durations counted in fixed buckets, as they cross the engine seam and can be added up."""

from __future__ import annotations

import math
from itertools import zip_longest

from inference.values import value

# Seconds: the upper bounds of the buckets, six to a power of ten from a millisecond to a hundred seconds.
BOUNDS: tuple[float, ...] = (*(step * 10**power / 1e4 for power in range(1, 6) for step in (1, 1.5, 2, 3, 5, 7)), 100.0)


@value
class Histogram:
    """How many durations lay in each bucket, and what they came to together.

    `counts[i]` are those above `BOUNDS[i - 1]` and at most `BOUNDS[i]`, one more count has the longer ones. With no
    counts nothing was counted, or whoever tells doesn't count it.
    """

    counts: tuple[int, ...] = ()
    seconds: float = 0.0

    def __add__(self, other: Histogram) -> Histogram:
        """Return both together."""
        pairs = zip_longest(self.counts, other.counts, fillvalue=0)
        return Histogram(tuple([mine + theirs for mine, theirs in pairs]), self.seconds + other.seconds)

    def follows(self, earlier: Histogram) -> bool:
        """Whether this may be `earlier` with more counted."""
        pairs = zip_longest(self.counts, earlier.counts, fillvalue=0)
        return all(mine >= before for mine, before in pairs) and self.seconds >= earlier.seconds

    @property
    def is_possible(self) -> bool:
        """Whether durations can have come to this."""
        counts = self.counts
        fits = len(counts) in {0, len(BOUNDS) + 1} and min(counts, default=0) >= 0
        return fits and 0.0 <= self.seconds < math.inf

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def percentile(self, part: float) -> float | None:
        """Return the least bound that at least this `part` of the durations don't exceed; None where there are none.

        Infinity where that part takes durations above the last bound.
        """
        due, seen = part * self.total, 0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            seen += count
            if seen and seen >= due:
                return bound
        return math.inf if self.total else None
