"""Ports for the servers of tests: leased for as long as the process lives, so that no other test process takes one."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_random = random.SystemRandom()  # two test processes take the same of no seed
_leased: set[int] = set()


def lease_port(count: int = 1) -> int:
    """Return the first of `count` ports in a row on which nobody listens and which no other process here leases.

    They are below those that the system gives to connections, so that none of these takes one before its server does.
    """
    while True:
        port = _random.randrange(LOWEST, _highest() - count)
        ports = range(port, port + count)
        if _leased.isdisjoint(ports) and all(map(_is_locked_for_us, ports)) and all(map(_is_free, ports)):
            _leased.update(ports)
            return port


def _is_locked_for_us(port: int) -> bool:
    """Lock the byte of that number in the file that all test processes of this user have open; it is never written.

    The lock goes when the process ends, however it ends, and no child has it.
    """
    try:
        fcntl.lockf(_register(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False


@functools.cache
def _register() -> IO[bytes]:
    return (Path(tempfile.gettempdir()) / f"sluice-ports-{os.getuid()}").open("ab")


@functools.cache
def _highest() -> int:
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    return first if first > 2 * LOWEST else 32_768
