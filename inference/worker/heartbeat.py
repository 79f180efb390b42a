"""How whoever supervises the worker sees that it gets on: a file touched each second while it does.

The path comes in ``SLUICE_HEARTBEAT``; without it nothing is touched. Loading a model, which takes minutes, is no
hang: only the reader and the step thread are looked at.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

VARIABLE = "SLUICE_HEARTBEAT"
READER_SECONDS = 5.0  # a reader with nothing to read turns each second

log = logging.getLogger(__name__)


class Turning(Protocol):
    """A thread's loop: when the turn that it is in began, or None while it waits for work."""

    turn_began: float | None


class Heartbeat:
    """Touches the file as long as no turn of the reader or of the step thread lasts too long."""

    def __init__(
        self,
        *,
        reader: Turning,
        steps: Turning,
        step_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = (("the reader's turn", reader, READER_SECONDS), ("a step", steps, step_seconds))
        self._clock = clock
        self._stuck = ""

    def run(self, ended: threading.Event) -> None:
        """Look each second until `ended`; for a thread of its own, without a supervisor for none."""
        path = os.environ.get(VARIABLE)
        while path and not ended.is_set():
            if self.is_alive():
                Path(path).touch()
            ended.wait(1.0)

    def is_alive(self) -> bool:
        """Whether both threads get on; the first look at one that doesn't is logged."""
        stuck = ""
        for what, thread, seconds in self._bounds:
            began = thread.turn_began
            if began is not None and self._clock() - began > seconds:
                stuck = f"{what} has lasted longer than {seconds:g} s"
                break
        if stuck and stuck != self._stuck:
            log.critical(stuck)
        self._stuck = stuck
        return not stuck
