"""A device without a GPU, for tests and smoke runs: work is done when it is given, captured work is done again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from inference.cuda.device import Room


class HostDevice:
    """Counts what a GPU would be asked; `fails` is what capturing raises, `free` what `room` finds."""

    def __init__(
        self, fails: Exception | None = None, free: int = 1 << 30, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self.capability = capability
        self.free = free
        self.measured = 0
        self.name = torch.device("cpu")
        self.captured = 0
        self.replays = 0
        self.released = 0
        self._fails = fails

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def pinned(self, numbers: int) -> torch.Tensor:
        return torch.empty(numbers, dtype=torch.long)

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        if self._fails is not None:
            raise self._fails
        self.captured += 1
        result = work()

        def replay() -> None:
            self.replays += 1
            result.copy_(work())

        return replay, result

    def room(self, work: Callable[[], None]) -> Room:
        self.measured += 1
        work()
        return Room(self.free, 1 << 20)

    def release(self) -> None:
        self.released += 1
