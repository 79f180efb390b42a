"""The tensors of adapters: in the storage `files`, and in a folder of each machine whose worker serves them."""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import structlog
from django.conf import settings
from django.core.files import File

from base.home import is_forgotten
from base.storage import storage
from inference.sources.adapters import CONFIG, WEIGHTS
from routing.models import Adapter

FOLDER = Adapter.FOLDER
FORGOTTEN = timedelta(days=1)
"""Age at which tensors without a row were surely left, for their row is made right after they are stored; and a folder
in which some were being brought here.
"""

log = structlog.get_logger("sluice.jobs")


def put(adapter: Adapter, weights: Path) -> None:
    """Store a copy of the file `weights` as the adapter's tensors."""
    with weights.open("rb") as opened:
        storage().save(adapter.key, File(opened, name=WEIGHTS))


def remove(adapter: Adapter) -> None:
    """Remove the adapter's tensors from the storage."""
    storage().delete(adapter.key)


def sweep(now: datetime, limit: int) -> int:
    """Remove tensors that no row names, at most `limit` of them, and return how many: those of a process that died
    before it had made the row, and those that the storage didn't remove when their adapter was withdrawn. What it
    doesn't remove now either is logged, and stays until the next time.
    """
    try:
        _, names = storage().listdir(FOLDER)
    except FileNotFoundError:  # nothing was ever stored
        return 0
    found = {identifier: name for name in names if (identifier := _identifier(name)) is not None}
    doomed = found.keys() - set(Adapter.objects.values_list("id", flat=True))
    removed = 0
    for name in (f"{FOLDER}/{found[identifier]}" for identifier in doomed):
        try:
            if _age(name, now) <= FORGOTTEN:
                continue
            storage().delete(name)
        except Exception as error:  # noqa: BLE001 - each storage has its own; the others are to go all the same
            log.warning("adapter_not_removed", name=name, error=str(error))
            continue
        log.warning("adapter_swept", name=name)
        removed += 1
        if removed == limit:
            break
    return removed


def _identifier(name: str) -> UUID | None:
    """Return the id of the adapter whose tensors have that name; None for what is none of ours."""
    try:
        identifier = UUID(hex=name)
    except ValueError:
        return None
    return identifier if identifier.hex == name else None


def _age(name: str, now: datetime) -> timedelta:
    try:
        return now - storage().get_modified_time(name)
    except FileNotFoundError:  # somebody else has just removed it
        return timedelta(0)


def folder_of(adapter: Adapter) -> Path:
    """Return the adapter's folder on this machine, brought here if need be.

    Raise FileNotFoundError where its tensors were lost, and what the storage raises where it doesn't answer.
    """
    folder = _home() / adapter.id.hex
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=_home(), prefix=".") as work:
        made = Path(work, "adapter")
        made.mkdir(mode=0o700)
        made.joinpath(CONFIG).write_text(json.dumps(adapter.config))
        with storage().open(adapter.key, "rb") as stored, made.joinpath(WEIGHTS).open("wb") as copy:
            shutil.copyfileobj(stored, copy)
        try:
            made.rename(folder)
        except OSError:  # somebody else has just brought it here
            if not folder.is_dir():
                raise
    return folder


def lost_folder_of(adapter: Adapter) -> Path:
    """Return a folder that is nowhere, for an adapter whose tensors were lost: a worker that is told it refuses the
    adapter, and reads it anew when it is told `folder_of` again.
    """
    return _home() / f".lost-{adapter.id.hex}"


def forget_folders() -> None:
    """Remove this machine's folders of adapters that were withdrawn, and those that killed processes were making."""
    wanted = {identifier.hex for identifier in Adapter.objects.values_list("id", flat=True)}
    for folder in _home().iterdir():
        if is_forgotten(folder) if folder.name.startswith(".") else folder.name not in wanted:
            shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    folder = Path(settings.SLUICE_HOME) / "adapters"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
