"""Signals between a supervised process and its supervisor: variables to the process, its heartbeat file back.

The path of the file is in ``SLUICE_HEARTBEAT``. The proof of progress differs (the gateway's event loop turns, the
worker's reader turns and its steps end, jobs end), so each process touches the file where it knows.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SLUICE_HEARTBEAT"
REPLACES = "SLUICE_REPLACES"  # set for a process that isn't the first of its name: the others are up


def touch_heartbeat() -> None:
    """Touch this process's heartbeat file, if it is watched."""
    if heartbeat := os.environ.get(VARIABLE):
        Path(heartbeat).touch()
