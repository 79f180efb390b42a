"""What steps took, and from that how many prompt tokens the next one may compute in a given time."""

from __future__ import annotations

from collections.abc import Iterable

FORGET = 0.98  # the weight of older steps, with each new one: what counts is about the last fifty
RIDGE = 1e-6  # keeps what no step has shown at 0
DECODE = (1.0, 32.0, 32768.0)  # units of: the step itself, its decode rows, the context of those
PREFILL = (256.0, 262144.0)  # of: prompt tokens, their pairs with what they attend to


class StepTimes:
    """A linear model of a step's seconds, fitted by least squares to the steps measured, older ones counting less.

    What prompt tokens cost is what a step with some took longer than one without, so a long time of decoding alone
    forgets nothing of it. Until steps with prompt tokens were measured, those cost nothing. It decides only how many
    prompt tokens a step computes, which changes no result where rows don't depend on their chunks (the exact tiers).
    """

    def __init__(self) -> None:
        self._decode = _Fit(DECODE)
        self._prefill = _Fit(PREFILL)

    def add(self, rows: Iterable[tuple[int, int]], seconds: float) -> None:
        """Take a step of `rows` (each its number of tokens and the position of the first) that took `seconds`."""
        decoding = context = tokens = pairs = 0
        for count, start in rows:
            if count == 1:
                decoding += 1
                context += start
            else:
                tokens += count
                pairs += _pairs(count, start)
        if tokens:
            without = self._decode.value((1, decoding, context))
            self._prefill.add((tokens, pairs), max(0.0, seconds - without))
        else:
            self._decode.add((1, decoding, context), seconds)

    def prefill_seconds(self, start: int, count: int) -> float:
        """How much longer a step takes with `count` prompt tokens from position `start` on."""
        return self._prefill.value((count, _pairs(count, start)))

    def tokens_within(self, seconds: float, start: int, most: int) -> int:
        """Return how many prompt tokens from position `start` on, up to `most`, make a step at most so much longer."""
        if self.prefill_seconds(start, most) <= seconds:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self.prefill_seconds(start, middle) <= seconds:
                low = middle
            else:
                high = middle
        return low


class _Fit:
    """Least squares of a sum of costs, in `units`, none of which comes out below 0."""

    def __init__(self, units: tuple[float, ...]) -> None:
        self._units = units
        self._products = [[0.0] * len(units) for _ in units]
        self._sums = [0.0] * len(units)
        self._costs: list[float] | None = None

    def add(self, parts: tuple[int, ...], seconds: float) -> None:
        """Take what `parts` cost together."""
        scaled = [part / unit for part, unit in zip(parts, self._units, strict=True)]
        for i, one in enumerate(scaled):
            line = self._products[i]
            for j, other in enumerate(scaled):
                line[j] = FORGET * line[j] + one * other
            self._sums[i] = FORGET * self._sums[i] + one * seconds
        self._costs = None

    def value(self, parts: tuple[int, ...]) -> float:
        """Return what `parts` cost together."""
        if self._costs is None:
            self._costs = self._solved()
        return sum(cost * part / unit for cost, part, unit in zip(self._costs, parts, self._units, strict=True))

    def _solved(self) -> list[float]:
        used = list(range(len(self._units)))
        while True:
            found = _solve(
                [[self._products[i][j] + (RIDGE if i == j else 0.0) for j in used] for i in used],
                [self._sums[i] for i in used],
            )
            if min(found, default=0.0) >= 0:
                break
            used = [i for i, cost in zip(used, found, strict=True) if cost >= 0]
        costs = [0.0] * len(self._units)
        for i, cost in zip(used, found, strict=True):
            costs[i] = cost
        return costs


def _pairs(count: int, start: int) -> int:
    """How many (query, key) pairs `count` tokens from position `start` on have."""
    return count * start + count * (count + 1) // 2


def _solve(matrix: list[list[float]], sums: list[float]) -> list[float]:
    """Solve a symmetric, positive definite system by elimination."""
    lines = [[*line, value] for line, value in zip(matrix, sums, strict=True)]
    size = len(lines)
    for i in range(size):
        for below in range(i + 1, size):
            factor = lines[below][i] / lines[i][i]
            for j in range(i, size + 1):
                lines[below][j] -= factor * lines[i][j]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(lines[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (lines[i][size] - rest) / lines[i][i]
    return found
