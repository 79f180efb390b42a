"""The heartbeat for the worker's supervisor: a file that is touched each second while the worker makes progress.

The path comes in ``SLUICE_HEARTBEAT``; without it nothing is touched. Only the reader and the step thread are watched:
loading a model takes minutes and is no hang.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from inference.logs import VARIABLE

READER_SECONDS = 5.0  # an idle reader still iterates each second

log = logging.getLogger(__name__)


class WatchedLoop(Protocol):
    """A thread's loop. `busy_since` is when its current iteration began, None while it waits for work."""

    busy_since: float | None


class Heartbeat:
    """Touches the file as long as no iteration of the reader or of the step thread lasts too long."""

    def __init__(
        self,
        *,
        reader: WatchedLoop,
        steps: WatchedLoop,
        step_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = (("an iteration of the reader", reader, READER_SECONDS), ("a step", steps, step_seconds))
        self._clock = clock
        self._stuck = ""

    def run(self, ended: threading.Event) -> None:
        """Check each second until `ended`, in a thread of its own; return at once without a supervisor."""
        path = os.environ.get(VARIABLE)
        while path and not ended.is_set():
            if self.is_alive():
                Path(path).touch()
            ended.wait(1.0)

    def is_alive(self) -> bool:
        """Whether both threads make progress; that one has stopped is logged once."""
        stuck = ""
        for what, thread, seconds in self._bounds:
            began = thread.busy_since
            if began is not None and self._clock() - began > seconds:
                stuck = f"{what} has lasted longer than {seconds:g} s"
                break
        if stuck and stuck != self._stuck:
            log.critical(stuck)
        self._stuck = stuck
        return not stuck
