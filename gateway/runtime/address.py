"""Where the gateway of this home listens: a file that it holds locked while it does."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from gateway.environment import Environment

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


def address_of(host: str, port: int) -> str:
    """Return the base URL at which this machine reaches a server that listens at `host` and `port`."""
    host = _EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def announced(base_url: str) -> Iterator[None]:
    """Within it `running_address` returns `base_url`, unless another gateway of this home was first."""
    descriptor = os.open(_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, base_url.encode(), 0)
        try:
            yield
        finally:
            _file().unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def running_address() -> str:
    """Return the base URL of this home's running gateway; an empty string when none runs, or it left a stale file."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(_file(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 256, 0).decode()
        finally:
            os.close(descriptor)
    return ""


def usual_address() -> str:
    """Return SLUICE_BASE_URL if it is set, else where this home's gateway runs, else the default."""
    if Environment().str("SLUICE_BASE_URL", default=""):
        return str(settings.SLUICE_BASE_URL)
    return running_address() or str(settings.SLUICE_BASE_URL)


def _file() -> Path:
    home: Path = settings.SLUICE_HOME
    return home / "gateway.address"
