"""``python leash.py``: ends a supervisor's children after its death, where the kernel has no signal for that.

Standard input is a pipe that only the supervisor holds open. It writes ``+pid`` for each child that starts and ``-pid``
for each that has ended; when the pipe closes, the process groups that are left get SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Keep the list until the supervisor is gone, then end what it left."""
    alive: set[int] = set()
    for line in sys.stdin:
        (alive.add if line.startswith("+") else alive.discard)(int(line[1:]))
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)


if __name__ == "__main__":
    main()
