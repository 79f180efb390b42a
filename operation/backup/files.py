"""The bytes of tenants' files and of adapters in a backup, by their keys in the storage `files`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from uuid import UUID

from django_scopes import scopes_disabled

from base import storage
from gateway.batches.files import StoredFile
from operation.backup.archive import FILES, BackupError, described
from routing.models import Adapter

if TYPE_CHECKING:
    from io import BufferedReader

_NAME = re.compile(rf"{FILES}([0-9a-f]{{32}}|{Adapter.FOLDER})/([0-9a-f]{{32}})")


class Stored:
    """The key, size and content of every file and adapter that has its bytes; iterate once. `missing` are whole ones
    without.

    A file that was deleted since the database was copied is still among them, until its bytes go; an adapter that was
    withdrawn since isn't, for its row and its tensors go together.
    """

    def __init__(self) -> None:
        self.missing = 0

    def __iter__(self) -> Iterator[tuple[str, int, IO[bytes]]]:
        with scopes_disabled():
            files = StoredFile.objects.exclude(state=StoredFile.State.PENDING).order_by("id")
            adapters = Adapter.objects.order_by("id")
            rows: Iterable[StoredFile | Adapter] = chain(files.iterator(), adapters.iterator())
            for file in rows:
                try:
                    size, content = storage.storage().size(file.key), storage.read(file)
                except OSError:  # also where it was deleted since we read its row
                    self.missing += _is_wanted(file)
                    continue
                with content:
                    yield file.key, size, content


def check_names(names: Iterable[str]) -> None:
    """Raise BackupError if any of the archive's members has no place in the storage."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise BackupError(f"the backup holds {name!r}, which is neither a tenant's file nor an adapter")


@contextmanager
def put_back(files: Mapping[str, Path]) -> Iterator[None]:
    """Store the files of the archive, by their members' names, those that aren't there as they are in it.

    Raise BackupError if that fails. Then, or if the block fails, those that were stored are removed: among them may be
    files that their tenants have deleted since.
    """
    stored: list[StoredFile | Adapter] = []
    try:
        for name, path in files.items():
            if found := _NAME.fullmatch(name):
                file = _row(*found.groups())
                if not _is_stored(file, path):
                    stored.append(file)
                    _put(file, path)
        yield
    except BaseException:
        for file in stored:
            storage.remove(file)
        raise


def _row(folder: str, identifier: str) -> StoredFile | Adapter:
    """Return the row whose bytes stand in that folder of the storage, with nothing but its key."""
    if folder == Adapter.FOLDER:
        return Adapter(id=UUID(identifier))
    return StoredFile(id=UUID(identifier), tenant_id=UUID(folder))


def _is_wanted(file: StoredFile | Adapter) -> bool:
    """Whether its bytes should be there, by its row as it is now."""
    if isinstance(file, Adapter):
        return Adapter.objects.filter(id=file.id).exists()
    return StoredFile.objects.filter(id=file.id, state=StoredFile.State.READY).exists()


def _put(file: StoredFile | Adapter, path: Path) -> None:
    try:
        storage.put(file, path)
    except OSError as error:
        raise BackupError(f"tenants' files and adapters can't be put back: {error.strerror or error}") from error


def _is_stored(file: StoredFile | Adapter, path: Path) -> bool:
    try:
        with storage.read(file) as content:
            return hashlib.file_digest(cast("BufferedReader", content), "sha256").hexdigest() == described(path).sha256
    except OSError:
        return False
