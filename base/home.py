"""SLUICE_HOME: its permissions, free space, sockets, how rows name what is in it, and what killed processes leave."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from django.conf import settings

from base.environment import Environment

LEAST_FREE = 64 * 1024 * 1024
FORGOTTEN_SECONDS = 86_400.0
"""Age at which unfinished work was surely left by a process that was killed: who is at it writes all the time."""
OF_HOME = "home:"
"""How a place begins that a row names relative to the home, which may be moved or copied."""
env = Environment()


def open_to_others() -> list[Path]:
    """Return the home and those files of its database that other users than its owner may read or write."""
    home: Path = settings.SLUICE_HOME
    kept = [home, home / "secret.key", home / "gateway.key", home / "demo.json", *home.glob("node-*.key")]
    if settings.SLUICE_EMBEDDED:
        name = str(settings.DATABASES["default"]["NAME"])
        kept += [Path(name + suffix) for suffix in ("", "-wal", "-shm")]
    return [path for path in kept if path.exists() and path.stat().st_mode & 0o077]


def close_to_others() -> None:
    """Take the permissions of other users on the home and its database; PermissionError if we aren't the owner."""
    for path in open_to_others():
        path.chmod(path.stat().st_mode & ~0o077)


def is_disk_full() -> bool:
    """Return whether the disk of the home, or of its database, has less than `LEAST_FREE` free bytes.

    Charges might not be written then.
    """
    places = {settings.SLUICE_HOME}
    if settings.SLUICE_EMBEDDED:
        places.add(Path(settings.DATABASES["default"]["NAME"]).parent)
    return any(shutil.disk_usage(place).free < LEAST_FREE for place in places)


def name_below(path: str, place: Path) -> str:
    """Return the name, relative to `place`, of an absolute path below it; an empty string for any other."""
    found = Path(path)
    is_below = found.is_relative_to(place) and found != place and ".." not in found.parts
    return str(found.relative_to(place)) if is_below else ""


def as_stored(path: str) -> str:
    """Return how a row names `path`: relative to the home where it is an absolute path below it."""
    name = name_below(path, settings.SLUICE_HOME)
    return OF_HOME + name if name else path


def as_meant(named: str) -> str:
    """Return what a row names on this machine; what isn't relative to the home is as it is."""
    return str(settings.SLUICE_HOME / named.removeprefix(OF_HOME)) if named.startswith(OF_HOME) else named


def named_runtime_directory() -> str:
    """Return the folder of sockets that the environment names, empty where it names none."""
    return str(env.str("SLUICE_RUNTIME_DIR", default=""))


def runtime_place() -> Path:
    """Return where this home's sockets are; PermissionError where that folder is another user's."""
    if chosen := named_runtime_directory():
        path = Path(chosen)
    else:
        digest = hashlib.sha256(str(settings.SLUICE_HOME).encode()).hexdigest()[:12]
        path = Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}-{digest}"
    if path.exists() and path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user: set SLUICE_RUNTIME_DIR to a folder of your own")
    return path


def runtime_directory() -> Path:
    """Return the short-named folder of this home's sockets (mode 0700), making it: an ipc path holds 107 characters."""
    runtime_place().mkdir(mode=0o700, parents=True, exist_ok=True)
    return runtime_place()


def worker_endpoint(node: str) -> str:
    """Return the ZeroMQ address at which the worker of `node` on this host listens."""
    return f"ipc://{runtime_directory() / node}.sock"


def is_forgotten(left: Path) -> bool:
    """Return whether a file or folder under a temporary name is ours, and nothing in it was written for a day."""
    try:
        found = left.lstat()
        written = [found.st_mtime, *(path.lstat().st_mtime for path in left.rglob("*"))]
    except FileNotFoundError:  # its process has just removed or renamed it
        return False
    is_ours = found.st_uid == os.getuid() and not left.is_symlink()
    return is_ours and max(written) < time.time() - FORGOTTEN_SECONDS
