"""The bytes of tenants' files in a backup, by their keys in the storage `files`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO
from uuid import UUID

from django_scopes import scopes_disabled

from gateway.backup.archive import FILES, BackupError
from gateway.files import storage
from gateway.models import StoredFile

_NAME = re.compile(rf"{FILES}([0-9a-f]{{32}})/([0-9a-f]{{32}})")


class Stored:
    """The key, size and content of every file that has its bytes; iterate once. `missing` are whole files without.

    One that was deleted since the database was copied is still among them, until its bytes go.
    """

    def __init__(self) -> None:
        self.missing = 0

    def __iter__(self) -> Iterator[tuple[str, int, IO[bytes]]]:
        with scopes_disabled():
            rows = StoredFile.objects.exclude(state=StoredFile.State.PENDING).order_by("id")
            for file in rows.iterator():
                try:
                    content = storage.read(file)
                except OSError:
                    self.missing += file.state == StoredFile.State.READY
                    continue
                with content:
                    yield file.key, storage.storage().size(file.key), content


def check_names(names: Iterable[str]) -> None:
    """Raise BackupError if any of the archive's members has no place in the storage."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise BackupError(f"the backup holds {name!r}, which is no tenant's file")


def put_back(files: Mapping[str, Path]) -> None:
    """Store the files of the archive, by their members' names, in place of what may be there under their keys."""
    for name, path in files.items():
        if found := _NAME.fullmatch(name):
            tenant, file = map(UUID, found.groups())
            storage.put(StoredFile(id=file, tenant_id=tenant), path)
