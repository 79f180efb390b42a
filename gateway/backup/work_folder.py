"""Folders in which a backup or a restore is made, and how what was made leaves them: they hold every secret and the
database, so they don't outlive it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORGOTTEN_SECONDS = 86_400.0
"""Age at which one was surely left by a process that was killed: what works in it writes all the time."""
BACKUP, RESTORE = ".sluice-backup-", ".sluice-restore-"
_WITHOUT_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # vfat's, and those of some network drives
_EARLIER = ".sluice-*.tar.gz.*"  # where releases up to 0.1 wrote their archives


@contextmanager
def work_folder(place: Path, prefix: str) -> Iterator[Path]:
    """A new folder (mode 0700) in `place`, gone afterwards; first goes what killed processes left there a day ago."""
    for left in [*place.glob(f"{prefix}*"), *place.glob(_EARLIER)]:
        if _is_forgotten(left):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as name:
        yield Path(name)


def place(draft: Path, target: Path) -> None:
    """Give the file `draft` the name `target`, which no file may have: a link, unlike a rename, never replaces one.

    Where the file system has no links it is copied, and nothing is left of a copy that fails.
    """
    try:
        target.hardlink_to(draft)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
    else:
        return
    target.touch(0o600, exist_ok=False)
    try:
        with draft.open("rb") as whole, target.open("wb") as copy:
            shutil.copyfileobj(whole, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    except BaseException:
        target.unlink()
        raise


def _is_forgotten(left: Path) -> bool:
    """Whether it is ours, and neither it nor anything in it was written for a day."""
    try:
        found = left.lstat()
        written = [found.st_mtime, *(path.lstat().st_mtime for path in left.glob("*"))]
    except FileNotFoundError:  # its process has just removed it
        return False
    is_ours = found.st_uid == os.getuid() and not left.is_symlink()
    return is_ours and max(written) < time.time() - FORGOTTEN_SECONDS
