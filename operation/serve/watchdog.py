"""Whether a process still makes progress, by the heartbeat file that it touches (`base/heartbeat.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 600.0  # until the first sign of life: imports and a slow disk are no hang
_LONGEST_TURN = 1.0


@dataclass(slots=True)
class Watchdog:
    """Counts how long `file` has not been touched, up to `limit` seconds.

    Only time in which the watcher itself ran counts: after a machine has slept, or the watcher was stopped, every file
    is old and nobody hangs.
    """

    file: Path
    limit: float
    _touched_at: int | None = field(default=None, init=False)
    _silence: float = field(default=0.0, init=False)
    _looked_at: float = field(default=0.0, init=False)

    def restart(self, now: float) -> None:
        """Forget the process before: another starts `now`."""
        self.file.unlink(missing_ok=True)
        self._touched_at, self._silence, self._looked_at = None, 0.0, now

    def is_silent(self, now: float) -> bool:
        """Look at the file; return whether it was left alone for too long. Called about four times a second."""
        self._silence += min(now - self._looked_at, _LONGEST_TURN)
        self._looked_at = now
        try:
            touched_at = self.file.stat().st_mtime_ns
        except FileNotFoundError:
            touched_at = None
        if touched_at != self._touched_at:
            self._touched_at, self._silence = touched_at, 0.0
        return self._silence > (START_SECONDS if touched_at is None else self.limit)
