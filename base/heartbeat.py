"""Signals between a supervised process and its supervisor: variables to the process, heartbeats back.

Under `serve` a heartbeat touches the file named in ``SLUICE_HEARTBEAT``; under systemd it is a message to the socket in
``NOTIFY_SOCKET``, which tells at once that the process is ready. The proof of progress differs (the gateway's event
loop turns, the worker's reader turns and its steps end, jobs end), so each process beats where it knows.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

VARIABLE = "SLUICE_HEARTBEAT"
REPLACES = "SLUICE_REPLACES"  # set for a process that isn't the first of its name: the others are up


def touch_heartbeat() -> None:
    """Show whoever watches this process that it is ready and gets on."""
    if heartbeat := os.environ.get(VARIABLE):
        Path(heartbeat).touch()
    if systemd := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.setblocking(False)
            with suppress(OSError):  # it has enough of them to read, or is another program's
                to.sendto(b"READY=1\nWATCHDOG=1", systemd.replace("@", "\0", 1))
