"""The archive of a backup: a gzipped tar of which every member is named, with its size and checksum.

The first member, ``manifest.json``, names ``database.sqlite3`` or ``database.pgdump`` (pg_dump's custom format),
``secrets.json``, and under ``home/`` key files and the workers' records. Tenants' files and adapters, under ``files/``,
are written as they are read, so what names them is the last member, ``files.json``. Format 1 had none, and format 2 no
adapters.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import msgspec

from base.home import is_forgotten

BACKUP, RESTORE = ".sluice-backup-", ".sluice-restore-"
_WITHOUT_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # vfat's, and those of some network drives
_EARLIER = ".sluice-*.tar.gz.*"  # where releases up to 0.1 wrote their archives


@contextmanager
def work_folder(place: Path, prefix: str) -> Iterator[Path]:
    """A new folder (mode 0700) in `place`, for a backup or a restore; first goes what killed processes left there a day
    ago. It holds every secret and the database, so it doesn't outlive the block.
    """
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


FORMAT = 3
OLDEST_FORMAT = 1
MANIFEST = "manifest.json"
MOST_MANIFEST = 4 << 20
FILES, INDEX = "files/", "files.json"


class BackupError(Exception):
    """No backup could be made or restored; the message says why and what to do."""


class Member(msgspec.Struct, frozen=True):
    """One file of the archive."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a backup. `migrations` are the applied ones by app; `made_at` is in UTC, ISO 8601; `home` is the
    installation's, empty in backups that didn't tell it.
    """

    format: int
    sluice: str
    made_at: str
    database: str
    migrations: dict[str, list[str]]
    members: dict[str, Member]
    home: str = ""


def described(path: Path) -> Member:
    """Return size and checksum of a file."""
    with path.open("rb") as file:
        return Member(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write(
    target: Path,
    manifest: Manifest,
    files: Mapping[str, Path],
    of_tenants: Iterable[tuple[str, int, IO[bytes]]] = (),
    *,
    within: Path,
) -> int:
    """Write the archive (mode 0600) at `target`, where no file may be; on failure nothing is left there.

    It becomes whole in the folder `within`, of the same file system. `of_tenants` are the names, sizes and contents of
    tenants' files and of adapters, each read before the next is taken; returns how many there were.
    """
    index: dict[str, Member] = {}
    draft = within / "archive.tar.gz"
    try:
        with open(draft, "xb", opener=_private) as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as tar:
                _add(tar, MANIFEST, io.BytesIO(first := msgspec.json.encode(manifest)), len(first))
                for name, path in files.items():
                    with path.open("rb") as member:
                        _add(tar, name, member, manifest.members[name].bytes)
                for name, size, content in of_tenants:
                    hashed = _Hashed(content)
                    _add(tar, FILES + name, cast("IO[bytes]", hashed), size)
                    index[FILES + name] = Member(size, hashed.sha256.hexdigest())
                _add(tar, INDEX, io.BytesIO(encoded := msgspec.json.encode(index)), len(encoded))
            file.flush()
            os.fsync(file.fileno())
        place(draft, target)
    except FileExistsError as error:
        raise BackupError(f"{target} exists already: choose another name, or give a folder") from error
    except OSError as error:
        raise unwritten(target, error) from error
    return len(index)


def unwritten(target: Path, error: Exception) -> BackupError:
    """Return what to raise where a backup can't be made for want of room or rights."""
    reason = getattr(error, "strerror", None) or error
    return BackupError(f"the backup can't be written to {target}: {reason}: make room there, or give another place")


def read(source: Path, folder: Path) -> tuple[Manifest, dict[str, Path]]:
    """Unpack the archive into `folder` and return its manifest and its files by name, all of them verified."""
    try:
        with source.open("rb") as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
            manifest = _manifest(tar, source)
            return manifest, _unpacked(tar, manifest, folder)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the machine's own, not what gzip found
            raise BackupError(f"{source} can't be read, or unpacked in {folder.parent}: {error.strerror}") from error
        raise BackupError(f"{source} is no backup, or damaged: {error}") from error


def _manifest(tar: tarfile.TarFile, source: Path) -> Manifest:
    first = tar.next()
    if first is None or first.name != MANIFEST or first.size > MOST_MANIFEST:
        raise BackupError(f"{source} is no backup of Sluice")
    try:
        manifest = msgspec.json.decode(cast("IO[bytes]", tar.extractfile(first)).read(), type=Manifest)
    except msgspec.DecodeError as error:
        raise BackupError(f"{source} has a manifest that can't be read: {error}") from error
    if not OLDEST_FORMAT <= manifest.format <= FORMAT:
        reads = f"formats {OLDEST_FORMAT} to {FORMAT}"
        raise BackupError(f"{source} has format {manifest.format}; this version of Sluice reads {reads}")
    return manifest


def _unpacked(tar: tarfile.TarFile, manifest: Manifest, folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for entry in tar:
        if entry.name == MANIFEST:
            continue
        is_indexed = manifest.format > 1 and (entry.name.startswith(FILES) or entry.name == INDEX)
        if not (entry.name in manifest.members or is_indexed) or not entry.isfile():
            raise BackupError(f"the backup holds {entry.name!r}, which its manifest doesn't name")
        if entry.name in found:
            raise BackupError(f"the backup holds {entry.name!r} twice")
        path = folder / str(len(found))  # no member decides where it is written, nor by its name whether it can be
        with cast("IO[bytes]", tar.extractfile(entry)) as member, path.open("xb") as file:
            shutil.copyfileobj(member, file, 1 << 20)
        found[entry.name] = path
    expected = manifest.members | _index(found.pop(INDEX, None), manifest)
    if missing := expected.keys() - found.keys():
        raise BackupError(f"the backup lacks {min(missing)}")
    for name, path in found.items():
        if described(path) != expected.get(name):
            raise BackupError(f"{name} of the backup is damaged: its checksum is another")
    return found


def _index(path: Path | None, manifest: Manifest) -> dict[str, Member]:
    """Return the index of tenants' files and adapters: empty in format 1, and later a member that has to be there."""
    if manifest.format == 1:
        return {}
    if path is None:
        raise BackupError(f"the backup lacks {INDEX}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Member])
    except msgspec.DecodeError as error:
        raise BackupError(f"{INDEX} of the backup can't be read: {error}") from error


class _Hashed:
    """A file whose checksum is known once it was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(time.time())
    tar.addfile(entry, content)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
