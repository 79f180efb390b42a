"""Durations of steps, and from them the prompt tokens that the next step may compute in a given time."""

from __future__ import annotations

from collections.abc import Iterable

FORGET = 0.98  # the weight of older steps, with each new one: what counts is about the last fifty
DISTURBED = 2.0  # so many times what was predicted: what is more tells of what held the step up
RIDGE = 1e-6  # keeps what no step has shown at 0
UNITS = (
    1.0,  # the step itself
    32.0,  # its decode rows
    32768.0,  # the context of those
    256.0,  # its prompt tokens
    262144.0,  # their pairs with what they attend to
)


class StepTimes:
    """A linear model of a step's seconds, fitted by least squares to the steps measured, older ones counting less.

    Steps with prompt tokens are forgotten with further ones of them only, so that a long time of decoding alone
    forgets nothing of what prompts cost. Until such steps were measured, those cost nothing. What holds a step up
    isn't always its own work (memory touched for the first time, another process on its cores), but none is faster
    than it can be. So one with prompt tokens counts as DISTURBED times what was predicted at most, and after one that
    took less than that part of it the older ones count half: a first, cold step isn't believed for the next fifty. It
    decides only how many prompt tokens a step computes, which changes no result where rows don't depend on their
    chunks (the exact tiers).

    `full_seconds` is what a step that decodes `rows` rows takes, or nearly as many, as those last measured; 0 before.
    """

    def __init__(self, rows: int) -> None:
        self.full_seconds = 0.0
        self._rows = rows
        self._decoding = _Sums()
        self._mixed = _Sums()
        self._costs: list[float] | None = None

    def add(self, decoding: int, context: int, prompts: Iterable[tuple[int, int]], seconds: float) -> None:
        """Take a step that took `seconds`.

        So many of its rows decode, with so many tokens before them together, and `prompts` has of each of the others
        its number of tokens and the position of the first.
        """
        tokens = pairs = 0
        for count, start in prompts:
            tokens += count
            pairs += _pairs(count, start)
        parts = (1, decoding, context, tokens, pairs)
        # What decoding alone took is forgotten with every step: a machine that is slower now is so for prompts too.
        self._decoding.forget()
        if tokens:
            seconds = self._undisturbed(parts, seconds)
        (self._mixed if tokens else self._decoding).add(parts, seconds)
        if not tokens and 8 * decoding >= 7 * self._rows:
            self.full_seconds = FORGET * self.full_seconds + (1 - FORGET) * seconds if self.full_seconds else seconds
        self._costs = None

    def decode_seconds(self, rows: int, context: int) -> float:
        """Return the seconds of a step with `rows` decode rows, which have `context` tokens before them together."""
        return self._value((1, rows, context, 0, 0))

    def prefill_seconds(self, start: int, count: int) -> float:
        """How much longer a step takes with `count` prompt tokens from position `start` on."""
        return self._value((0, 0, 0, count, _pairs(count, start)))

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

    def _undisturbed(self, parts: tuple[int, ...], seconds: float) -> float:
        """Forget what the step shows to be outdated, and return what of its seconds is to be believed."""
        predicted = self._value(parts) if self._mixed else 0.0
        if not predicted:
            return seconds
        self._mixed.forget(FORGET if DISTURBED * seconds >= predicted else 0.5)
        return min(seconds, DISTURBED * predicted)

    def _value(self, parts: tuple[int, ...]) -> float:
        if self._costs is None:
            self._costs = self._solved()
        return sum(cost * part / unit for cost, part, unit in zip(self._costs, parts, UNITS, strict=True))

    def _solved(self) -> list[float]:
        """Return the cost of each part, none below 0."""
        size = range(len(UNITS))
        products = [[self._decoding.products[i][j] + self._mixed.products[i][j] for j in size] for i in size]
        sums = [self._decoding.sums[i] + self._mixed.sums[i] for i in size]
        used = [i for i in size if products[i][i]]
        while True:
            found = _solve(
                [[products[i][j] + (RIDGE if i == j else 0.0) for j in used] for i in used], [sums[i] for i in used]
            )
            if min(found, default=0.0) >= 0:
                break
            used = [i for i, cost in zip(used, found, strict=True) if cost >= 0]
        costs = [0.0] * len(UNITS)
        for i, cost in zip(used, found, strict=True):
            costs[i] = cost
        return costs


class _Sums:
    """The sums of a least squares fit: of products of the parts, in UNITS, and of parts with seconds."""

    def __init__(self) -> None:
        self.products = [[0.0] * len(UNITS) for _ in UNITS]
        self.sums = [0.0] * len(UNITS)

    def __bool__(self) -> bool:
        """Whether anything was added."""
        return bool(self.products[0][0])

    def forget(self, part: float = FORGET) -> None:
        """Let what was added count for this part of what it counted."""
        self.products = [[part * value for value in line] for line in self.products]
        self.sums = [part * value for value in self.sums]

    def add(self, parts: tuple[int, ...], seconds: float) -> None:
        """Take what `parts` cost together."""
        scaled = [part / unit for part, unit in zip(parts, UNITS, strict=True)]
        for i, one in enumerate(scaled):
            if one:
                line = self.products[i]
                for j, other in enumerate(scaled):
                    line[j] += one * other
                self.sums[i] += one * seconds


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
