"""The tensors of adapters: in the storage `files`, and in a folder of each machine whose worker serves them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from django.conf import settings
from django.core.files import File

from gateway.files.storage import storage
from inference.sources.adapters import CONFIG, WEIGHTS
from routing.models import Adapter


def put(adapter: Adapter, weights: Path) -> None:
    """Store a copy of the file `weights` as the adapter's tensors."""
    with weights.open("rb") as opened:
        storage().save(adapter.key, File(opened, name=WEIGHTS))


def remove(adapter: Adapter) -> None:
    """Remove the adapter's tensors from the storage."""
    storage().delete(adapter.key)


def folder_of(adapter: Adapter) -> Path:
    """Return the adapter's folder on this machine, brought here if need be; raise OSError if it isn't stored."""
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


def forget_folders() -> None:
    """Remove this machine's folders of adapters that were withdrawn."""
    wanted = {identifier.hex for identifier in Adapter.objects.values_list("id", flat=True)}
    for folder in _home().iterdir():
        if not folder.name.startswith(".") and folder.name not in wanted:
            shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    folder = Path(settings.SLUICE_HOME) / "adapters"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
