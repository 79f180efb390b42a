"""Folders in which a backup or a restore is made, and how what was made leaves them: they hold every secret and the
database, so they don't outlive it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from base.home import is_forgotten

BACKUP, RESTORE = ".sluice-backup-", ".sluice-restore-"
_WITHOUT_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # vfat's, and those of some network drives
_EARLIER = ".sluice-*.tar.gz.*"  # where releases up to 0.1 wrote their archives


@contextmanager
def work_folder(place: Path, prefix: str) -> Iterator[Path]:
    """A new folder (mode 0700) in `place`, gone afterwards; first goes what killed processes left there a day ago."""
    for left in [*place.glob(f"{prefix}*"), *place.glob(_EARLIER)]:
        if is_forgotten(left):
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
