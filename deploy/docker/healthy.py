"""Health of a container: ``healthy.py gateway | worker | celery | backup`` exits with 0 or 1.

Only the standard library.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

# How long a process may be silent: `serve` replaces a worker after 15 s, and Celery has something to do each second.
SILENCE = {"worker": 60.0, "celery": 120.0}
BACKUPS, OLDEST_BACKUP = Path("/var/backups/sluice"), 26 * 3600.0


def gateway_answers() -> bool:
    """Return whether the gateway's event loop turns."""
    port = int(os.environ.get("SLUICE_METRICS_PORT") or 8000)
    with closing(HTTPConnection("127.0.0.1", port, timeout=4)) as connection:  # unlike urllib it uses no proxy
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200


def touched(heartbeat: Path, silence: float) -> bool:
    """Return whether the heartbeat is young; raise OSError where there is none."""
    return time.time() - heartbeat.stat().st_mtime < silence


def is_healthy(process: str) -> bool:
    """Return whether the process of this container is well."""
    if process == "gateway":
        return gateway_answers()
    if process == "celery":
        # There is none before the first task, for which the health check's start period has room.
        return touched(Path(os.environ["SLUICE_HEARTBEAT"]), SILENCE["celery"])
    if process == "backup":
        return any(touched(archive, OLDEST_BACKUP) for archive in BACKUPS.glob("sluice-*.tar.gz"))
    # Without models a node runs no worker, and there is none.
    beats = Path(os.environ.get("SLUICE_RUNTIME_DIR", "/tmp/sluice")).glob("worker-*.heartbeat")  # noqa: S108 - ours
    return all(touched(beat, SILENCE["worker"]) for beat in beats)


if __name__ == "__main__":
    try:
        sys.exit(not is_healthy(sys.argv[1]))
    except (OSError, HTTPException):
        sys.exit(1)
