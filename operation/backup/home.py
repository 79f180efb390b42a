"""The files of a home that no database has: key files, the demo key's too, and the workers' records."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from operation.backup.archive import BackupError

_KEYS = re.compile(r"(gateway|node-[\w.-]+)\.key|demo\.json")
_RECORDS = re.compile(r"worker-[\w.-]+\.record(\.\d+)?")
_TRIES = 20


def copied(home: Path, folder: Path) -> dict[str, Path]:
    """Copy the files into `folder` while a worker may write them, and return the copies by their names in `home`.

    A record's last row may be incomplete: the worker that opens it cuts that off.
    """
    for _ in range(_TRIES):
        before = _found(home)
        try:
            copies = {name: Path(shutil.copyfile(home / name, folder / name)) for name in before}
        except FileNotFoundError:
            continue  # deleted, being a day old, while we copied
        if before == _found(home):  # else a file was rotated, and one of two names holds what the other held
            return copies
    raise BackupError(f"the workers' records in {home} are rotated all the time")


def check_names(names: Iterable[str]) -> None:
    """Raise BackupError if any of the files has no place in a home."""
    for name in names:
        if not (_KEYS.fullmatch(name) or _RECORDS.fullmatch(name)):
            raise BackupError(f"the backup holds {name!r}, which belongs into no home")


def put_back(files: Mapping[str, Path], home: Path) -> list[str]:
    """Put copied files into a home and return the names of the records left out: a record that is there stays, since it
    knows more than its older copy.
    """
    kept: list[str] = []
    present = {name.partition(".record")[0] for name in _found(home) if _RECORDS.fullmatch(name)}
    for name, path in files.items():
        if _RECORDS.fullmatch(name) and name.partition(".record")[0] in present:
            kept.append(name)
            continue
        draft = home / f".{name}.draft"
        shutil.copyfile(path, draft)
        draft.chmod(0o600)
        draft.rename(home / name)
    return kept


def _found(home: Path) -> dict[str, int]:
    """Return the inode of each file by its name."""
    names = (path for path in home.iterdir() if _KEYS.fullmatch(path.name) or _RECORDS.fullmatch(path.name))
    found: dict[str, int] = {}
    for path in sorted(names):
        try:
            found[path.name] = path.stat().st_ino
        except FileNotFoundError:
            continue
    return found
