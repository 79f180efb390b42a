"""The course of a training: its batches, made in processes of their own, its end and its learning rate."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset

SAVED = 20.0
"""Seconds from one check-point to the next."""

Made = TypeVar("Made")


class _Numbered(Dataset[Made]):
    def __init__(self, make: Callable[[int], Made]) -> None:
        self.make = make

    def __getitem__(self, number: int) -> Made:
        return self.make(number)


def _as_made(made: Made) -> Made:
    return made


def numbered(make: Callable[[int], Made], first: int, workers: int) -> Iterator[Made]:
    """Yield `make` of `first` and each number after it, in order, made in `workers` processes (0: in this one)."""
    given = _Numbered(make)
    numbers = range(first, sys.maxsize)
    return iter(DataLoader(given, None, sampler=numbers, num_workers=workers, collate_fn=_as_made))


class Course:
    """How far a training is on its way to its ends, some steps or a time, and what is written down on the way."""

    def __init__(self, out: Path, step: int, seconds: float, ends: Sequence[int], limit: float | None) -> None:
        self.out, self.step = out, step
        self.ends = ends if limit is None else ()
        self.limit = limit
        self._before, self._begun = seconds, time.monotonic()
        self._saved = seconds

    @property
    def seconds(self) -> float:
        """The time that was trained, in earlier goes too."""
        return self._before + time.monotonic() - self._begun

    @property
    def share(self) -> float:
        """The share that is behind of the time, or of the steps to the next end; 1 behind the last."""
        if self.limit is not None:
            return min(1.0, self.seconds / self.limit)
        return next((self.step / end for end in self.ends if end > self.step), 1.0)

    def tell(self, **line: Any) -> None:
        """Print a line of the curve and add it to `curve.jsonl`."""
        text = json.dumps({"step": self.step, **line, "seconds": round(self.seconds, 1)})
        print(text, flush=True)
        with (self.out / "curve.jsonl").open("a") as file:
            file.write(text + "\n")

    def is_due(self) -> bool:
        """Whether the next check-point is due; then it counts as made."""
        due = self.seconds - self._saved >= SAVED
        if due:
            self._saved = self.seconds
        return due


def rate(step: int, share: float, most: float, *, rise: int, fall: float) -> float:
    """Return the learning rate: it rises for `rise` steps and falls to nothing over the last `fall` of the way."""
    return most * min(1.0, (step + 1) / rise, (1.0 - share) / fall)
