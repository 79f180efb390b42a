"""Where the gateways of this home listen: a file for each port, locked for as long as anybody does.

It names its machine too: containers that share a home have each their own loopback.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from base.environment import Environment

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


def address_of(host: str, port: int) -> str:
    """Return the base URL at which this machine reaches a server that listens at `host` and `port`."""
    host = _EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def address_of_sockets(listening: Sequence[socket.socket]) -> str:
    """Return the base URL at which this machine reaches who accepts on them, an empty string for none with a port."""
    for one in listening:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            host, port = one.getsockname()[:2]
            return address_of(host, port)
    return ""


@contextmanager
def announced(base_url: str) -> Iterator[None]:
    """Within it `running_address` returns `base_url`, or that of another gateway of this home."""
    file = _folder() / f"gateway-{urlsplit(base_url).port}.address"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process that accepts there, or who opened the socket, announces it
            yield
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{base_url} {socket.gethostname()}".encode(), 0)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def running_address() -> str:
    """Return the base URL of a gateway of this home that runs here; an empty string when none does."""
    return next(filter(None, map(_announced_in, sorted(_folder().glob("gateway-*.address")))), "")


def usual_address() -> str:
    """Return SLUICE_BASE_URL if it is set, else where this home's gateway runs, else the default."""
    if Environment().str("SLUICE_BASE_URL", default=""):
        return str(settings.SLUICE_BASE_URL)
    return running_address() or str(settings.SLUICE_BASE_URL)


def _announced_in(file: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            address, _, machine = os.pread(descriptor, 512, 0).decode().partition(" ")
            return address if machine == socket.gethostname() else ""
        finally:
            os.close(descriptor)
    return ""


def _folder() -> Path:
    home: Path = settings.SLUICE_HOME
    return home
