"""What steps took, and from that how many prompt tokens the next one may compute in a given time."""

from __future__ import annotations

from collections.abc import Iterable

FORGET = 0.98  # the weight of older steps, with each new one: what counts is about the last fifty
RIDGE = 1e-3  # keeps what no step has shown at 0
# A step: itself, its decode rows, their context, its prompt tokens, the pairs of those with what they attend to.
UNITS = (1.0, 32.0, 32768.0, 256.0, 262144.0)
PROMPT_TOKENS, PAIRS = 3, 4


class StepTimes:
    """A linear model of a step's seconds, fitted by least squares to the steps measured, older ones counting less.

    Until steps with prompt tokens were measured, those cost nothing. It decides only how many prompt tokens a step
    computes, which changes no result where rows don't depend on their chunks (the exact tiers).
    """

    def __init__(self) -> None:
        size = len(UNITS)
        self._products = [[0.0] * size for _ in range(size)]
        self._sums = [0.0] * size
        self._costs: list[float] | None = None

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
        step = [value / unit for value, unit in zip((1, decoding, context, tokens, pairs), UNITS, strict=True)]
        for i, one in enumerate(step):
            line = self._products[i]
            for j, other in enumerate(step):
                line[j] = FORGET * line[j] + one * other
            self._sums[i] = FORGET * self._sums[i] + one * seconds
        self._costs = None

    def prefill_seconds(self, start: int, count: int) -> float:
        """How much longer a step takes with `count` prompt tokens from position `start` on."""
        costs = self._fit()
        return costs[PROMPT_TOKENS] * count / UNITS[PROMPT_TOKENS] + costs[PAIRS] * _pairs(count, start) / UNITS[PAIRS]

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

    def _fit(self) -> list[float]:
        """The costs of a step's parts: least squares, without those that would come out below 0."""
        if self._costs is None:
            used = list(range(len(UNITS)))
            while True:
                found = _solve(
                    [[self._products[i][j] + (RIDGE if i == j else 0.0) for j in used] for i in used],
                    [self._sums[i] for i in used],
                )
                negative = [i for i, cost in zip(used, found, strict=True) if cost < 0]
                if not negative:
                    break
                used = [i for i in used if i not in negative]
            self._costs = [0.0] * len(UNITS)
            for i, cost in zip(used, found, strict=True):
                self._costs[i] = cost
        return self._costs


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
