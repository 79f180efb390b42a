"""Folders under temporary names, in which something is made before it gets its own: their room on the disk, and the end
of those that killed processes left.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from inference.errors import ModelRefusedError

SPARE = 128 * 1024 * 1024
"""Free bytes that a model leaves on its disk: a ledger may be written there."""
FORGOTTEN_SECONDS = 86_400.0
"""Age at which one was surely left by a process that was killed: what works in it writes all the time."""


def require_room(place: Path, size: int, making: str) -> None:
    """Raise ModelRefusedError unless the disk of the folder `place` has room for so many bytes; `making` is what they
    are for.
    """
    free = shutil.disk_usage(place).free
    if free < size + SPARE:
        needed = (size + SPARE) >> 20
        raise ModelRefusedError(f"{making} needs {needed} MiB of the disk of {place}, which has {free >> 20} MiB free")


def forget_work_folders(place: Path, prefix: str) -> None:
    """Remove our folders in `place` whose names begin with `prefix`, and that killed processes left there a day ago.

    One that can't be removed stays until the next time.
    """
    for folder in place.glob(f"{prefix}*"):
        if _is_forgotten(folder):
            shutil.rmtree(folder, ignore_errors=True)  # another process may be at it too


def _is_forgotten(folder: Path) -> bool:
    """Whether it is ours, and neither it nor anything in it was written for a day."""
    try:
        found = folder.lstat()
        written = [found.st_mtime, *(path.lstat().st_mtime for path in folder.rglob("*"))]
    except FileNotFoundError:  # its process has just removed or renamed it
        return False
    is_ours = found.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
    return is_ours and max(written) < time.time() - FORGOTTEN_SECONDS
