"""What a supervised process hears from its supervisor, and by what it shows that it makes progress.

It finds the path of its heartbeat file in ``SLUICE_HEARTBEAT``. What proves progress differs (the gateway's event loop
turns, the worker's reader turns and its steps end, jobs end), so each touches the file where it knows.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SLUICE_HEARTBEAT"
REPLACES = "SLUICE_REPLACES"  # set for a process that isn't the first of its name: what there is besides is up


def touch_heartbeat() -> None:
    """Touch this process's heartbeat file, if it is watched."""
    if heartbeat := os.environ.get(VARIABLE):
        Path(heartbeat).touch()
