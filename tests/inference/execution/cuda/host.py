"""A device without a GPU, for tests and smoke runs: work is done when it is given, captured work is done again."""

from __future__ import annotations

from collections.abc import Callable

import torch


class HostDevice:
    """Counts what a GPU would be asked; `fails` is what capturing raises."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.name = torch.device("cpu")
        self.captured = 0
        self.replays = 0
        self.released = 0
        self._fails = fails

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

    def release(self) -> None:
        self.released += 1
