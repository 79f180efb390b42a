"""A PgBouncer in front of a PostgreSQL server for one test, on a free port."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.services.ports import lease_port
from tests.services.postgres import PostgresServer
from tests.services.proxies import running

SESSIONS = 8
"""How many sessions of the server each database has behind it."""


@contextlib.contextmanager
def pgbouncer(server: str, mode: str, *options: str) -> Iterator[int]:
    """Run it in front of the databases of the server at that address; yields its port."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        raise RuntimeError("pgbouncer is missing: run `make system` (Debian: pgbouncer)")
    folder, port = Path(tempfile.mkdtemp(prefix="sluice-pgbouncer-", dir="/tmp")), lease_port()
    address = urlsplit(server)
    lines = [
        "[databases]",
        f"* = host={address.hostname} port={address.port} user={address.username}",
        "[pgbouncer]",
        "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = any",
        f"pool_mode = {mode}",
        f"default_pool_size = {SESSIONS}",
        "max_client_conn = 500",
        f"logfile = {folder}/pgbouncer.log",
        *options,
    ]
    (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    command = [binary, str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(folder, PostgresServer._user())
        command[1:1] = ["-u", PostgresServer._user()]
    try:
        with running(command, port, folder):
            yield port
    finally:
        shutil.rmtree(folder, ignore_errors=True)
