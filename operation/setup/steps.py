"""What a command is doing, for people at a terminal: one line a step, with its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_WIDTH = 34


class Steps:
    """Writes to `out` if that is a terminal, and nothing otherwise."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show `name` with the seconds that it takes, counting while it lasts."""
        if not self._is_terminal:
            yield
            return
        began, ended = time.monotonic(), threading.Event()
        counting = threading.Thread(target=self._count, args=(name, began, ended), daemon=True)
        counting.start()
        mark = "failed"
        try:
            yield
            mark = "done"
        finally:
            ended.set()
            counting.join()
            self._write(name, f"{mark} in {time.monotonic() - began:.1f} s\n")

    def _count(self, name: str, began: float, ended: threading.Event) -> None:
        self._write(name, "…")
        while not ended.wait(1.0):
            self._write(name, f"… {time.monotonic() - began:.0f} s")

    def _write(self, name: str, state: str) -> None:
        self._out.write(f"\r  {name:{_WIDTH}} {state}")
        self._out.flush()
