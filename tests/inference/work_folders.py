"""What processes that were killed have left, as the tests of what is made there find it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from inference.work_folders import FORGOTTEN_SECONDS


def leave(place: Path, prefix: str) -> set[Path]:
    """Leave folders in `place`, and return what is to stay: one that was just written in, and what isn't such a folder.

    Only the one in which nothing was written for a day is to go.
    """
    old = time.time() - FORGOTTEN_SECONDS - 60
    elsewhere = place.parent / "elsewhere"
    names = [f"{prefix}old", f"{prefix}busy", "kept"]
    for folder in (*(place / name for name in names), elsewhere):
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "part-0").write_bytes(b"weights")
        is_busy = folder.name == f"{prefix}busy"
        for path in (*(() if is_busy else (folder / "model" / "part-0",)), folder / "model", folder):
            os.utime(path, (old, old))
    link = place / f"{prefix}link"
    link.symlink_to(elsewhere)
    os.utime(link, (old, old), follow_symlinks=False)
    return {place / f"{prefix}busy", place / "kept", link}
