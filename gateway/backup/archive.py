"""The archive of a backup: a gzipped tar whose first member, ``manifest.json``, names every other one.

Members: ``database.sqlite3`` or ``database.pgdump`` (pg_dump's custom format), ``secrets.json``, and under ``home/``
key files and the workers' records.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, cast

import msgspec

FORMAT = 1
MANIFEST = "manifest.json"
MOST_MANIFEST = 4 << 20


class BackupError(Exception):
    """No backup could be made or restored; the message says why and what to do."""


class Member(msgspec.Struct, frozen=True):
    """One file of the archive."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds. `migrations` are the applied ones by app; `made_at` is in UTC, ISO 8601."""

    format: int
    sluice: str
    made_at: str
    database: str
    migrations: dict[str, list[str]]
    members: dict[str, Member]


def described(path: Path) -> Member:
    """Return size and checksum of a file."""
    with path.open("rb") as file:
        return Member(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write(target: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write the archive (mode 0600) at `target`, where no file may be; on failure nothing is left there."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(draft, "xb", opener=_private) as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as tar:
                _add(tar, MANIFEST, io.BytesIO(content := msgspec.json.encode(manifest)), len(content))
                for name, path in files.items():
                    with path.open("rb") as member:
                        _add(tar, name, member, manifest.members[name].bytes)
            file.flush()
            os.fsync(file.fileno())
        target.hardlink_to(draft)  # unlike a rename, it never replaces a file
    except FileExistsError as error:
        raise BackupError(f"{target} exists already: choose another name, or give a folder") from error
    except OSError as error:
        raise BackupError(f"the backup can't be written to {target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def read(source: Path, folder: Path) -> tuple[Manifest, dict[str, Path]]:
    """Unpack the archive into `folder` and return its manifest and its files by name, all of them verified."""
    try:
        with tarfile.open(source, "r:gz") as tar:
            manifest = _manifest(tar, source)
            return manifest, dict(_unpacked(tar, manifest, folder))
    except (OSError, EOFError, tarfile.TarError) as error:
        raise BackupError(f"{source} is no backup, or damaged: {error}") from error


def _manifest(tar: tarfile.TarFile, source: Path) -> Manifest:
    first = tar.next()
    if first is None or first.name != MANIFEST or first.size > MOST_MANIFEST:
        raise BackupError(f"{source} is no backup of Sluice")
    try:
        manifest = msgspec.json.decode(cast("IO[bytes]", tar.extractfile(first)).read(), type=Manifest)
    except msgspec.DecodeError as error:
        raise BackupError(f"{source} has a manifest that can't be read: {error}") from error
    if manifest.format != FORMAT:
        raise BackupError(f"{source} has format {manifest.format}; this version of Sluice reads format {FORMAT}")
    return manifest


def _unpacked(tar: tarfile.TarFile, manifest: Manifest, folder: Path) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for entry in tar:
        if entry.name == MANIFEST:
            continue
        # A flat folder of our own names: no member decides where it is written.
        if entry.name not in manifest.members or not entry.isfile():
            raise BackupError(f"the backup holds {entry.name!r}, which its manifest doesn't name")
        path = folder / f"{len(found)}-{PurePosixPath(entry.name).name}"
        with cast("IO[bytes]", tar.extractfile(entry)) as member, path.open("xb") as file:
            shutil.copyfileobj(member, file, 1 << 20)
        if described(path) != manifest.members[entry.name]:
            raise BackupError(f"{entry.name} of the backup is damaged: its checksum is another")
        found.append((entry.name, path))
    if missing := manifest.members.keys() - {name for name, _ in found}:
        raise BackupError(f"the backup lacks {min(missing)}")
    return found


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(time.time())
    tar.addfile(entry, content)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
