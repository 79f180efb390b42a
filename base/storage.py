"""The bytes of tenants' files and adapters: Django's storage `files`, and the folder in which uploads become whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import structlog
from django.conf import settings
from django.core.files import File
from django.core.files.storage import Storage, storages

FORGOTTEN_SECONDS = 86_400.0
"""Age at which a draft was surely left by a process that died: an upload takes `SLUICE_FILE_SECONDS` at most."""

log = structlog.get_logger("sluice.jobs")


class Stored(Protocol):
    """A row whose bytes lie in the storage under its key."""

    @property
    def key(self) -> str: ...


def storage() -> Storage:
    """Return the storage of the settings."""
    return storages["files"]


def drafts() -> Path:
    """Return the folder of files that are being written, on this machine."""
    folder = Path(settings.SLUICE_HOME) / "drafts"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def put(file: Stored, draft: Path) -> None:
    """Store the bytes of `draft` as those of `file`, in place of what may be there. A storage in folders moves them."""
    remove(file)
    with draft.open("rb") as opened:
        storage().save(file.key, _Draft(opened, draft))


def read(file: Stored) -> BinaryIO:
    """Open the bytes of `file`; raise OSError where they are not."""
    return cast("BinaryIO", storage().open(file.key, "rb"))


def remove(file: Stored) -> None:
    """Remove the bytes of `file`, if there are any."""
    storage().delete(file.key)


def sweep_drafts() -> None:
    """Remove the drafts of processes that died. What can't be removed is logged, and stays until the next time."""
    for path in drafts().iterdir():
        try:
            if path.stat().st_mtime < time.time() - FORGOTTEN_SECONDS:
                path.unlink()
        except FileNotFoundError:
            continue  # it became a file
        except OSError as error:
            log.warning("draft_not_removed", name=path.name, error=str(error))


class _Draft(File):  # type: ignore[type-arg] # Django's own is not generic at run time
    """A file that a storage may take by renaming it."""

    def __init__(self, opened: BinaryIO, path: Path) -> None:
        super().__init__(opened, name=path.name)
        self._path = path

    def temporary_file_path(self) -> str:
        return str(self._path)
