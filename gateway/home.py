"""SLUICE_HOME: who owns it, who may read it, whether it is full, and where its sockets are."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from django.conf import settings

LEAST_FREE = 64 * 1024 * 1024


class HomeInUseError(RuntimeError):
    """Another gateway process works on this embedded home; the message names it."""


class HomeLock:
    """The exclusive right to be the gateway of an embedded home, held until `release` or the process's end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, home: Path) -> HomeLock:
        """Take the lock of `home`, or raise `HomeInUseError` naming the process that has it."""
        path = home / "gateway.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode().strip() or "unknown"
            os.close(descriptor)
            message = (
                f"{home} is already served by process {holder}. An embedded home (SQLite) takes one gateway: "
                "stop that one, choose another SLUICE_HOME, or set DATABASE_URL."
            )
            raise HomeInUseError(message) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Let the next gateway in."""
        os.close(self._descriptor)


def open_to_others() -> list[Path]:
    """Return the home and those files of its database that other users than its owner may read or write."""
    home: Path = settings.SLUICE_HOME
    kept = [home, home / "secret.key", home / "demo.json"]
    if settings.SLUICE_EMBEDDED:
        name = str(settings.DATABASES["default"]["NAME"])
        kept += [Path(name + suffix) for suffix in ("", "-wal", "-shm")]
    return [path for path in kept if path.exists() and path.stat().st_mode & 0o077]


def close_to_others() -> None:
    """Leave the home and its database to their owner alone; raise PermissionError when we aren't that."""
    for path in open_to_others():
        path.chmod(path.stat().st_mode & ~0o077)


def is_disk_full() -> bool:
    """Whether the disk under the home, or under its database, has less than `LEAST_FREE` bytes for us.

    The next charge may not be written then.
    """
    places = {settings.SLUICE_HOME}
    if settings.SLUICE_EMBEDDED:
        places.add(Path(settings.DATABASES["default"]["NAME"]).parent)
    return any(shutil.disk_usage(place).free < LEAST_FREE for place in places)


def runtime_directory() -> Path:
    """Return the short-named folder of this home's sockets (mode 0700), making it: an ipc path holds 107 characters."""
    if chosen := os.environ.get("SLUICE_RUNTIME_DIR"):
        path = Path(chosen)
    else:
        digest = hashlib.sha256(str(settings.SLUICE_HOME).encode()).hexdigest()[:12]
        path = Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}-{digest}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user: set SLUICE_RUNTIME_DIR to a folder of your own")
    return path


def worker_endpoint(node: str) -> str:
    """Return the ZeroMQ address at which the worker of `node` on this host listens."""
    return f"ipc://{runtime_directory() / node}.sock"
