"""Lets one gateway work on a database, or several that count rate limits together in Redis; never both kinds.

The lock is the database's, whatever home a gateway has: on SQLite a lock on a file beside the database's own, so that
there it is always one; on PostgreSQL an advisory lock of a session of its own, shared between gateways with Redis and
exclusive without. When that session is lost the lock may be lost too: the gateway then refuses new requests until it
has the lock again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import psycopg
import structlog
from django.db.backends.utils import CursorWrapper
from psycopg.conninfo import make_conninfo

from base.database.connections import session_arguments

CHECK_SECONDS = 1.0
ANSWER_SECONDS = 2.0
CONNECT_SECONDS = 5
TRIES, TRY_SECONDS = 10, 0.2  # the session of a gateway that has just ended may take a moment to end, too
KEY = (0x51_01_CE, 1)

# A server frees the lock of a machine that vanished once it notices that nobody is there.
_OPTIONS = "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c idle_session_timeout=0"
_HOLDERS = """
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %s AND l.objid = %s AND l.objsubid = 2
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.pid <> pg_backend_pid()
"""
_NAMES = (
    "SELECT DISTINCT regexp_replace(a.application_name, ' lock .*', '') || ' at ' "
    f"|| coalesce(host(a.client_addr), 'this machine') {_HOLDERS} ORDER BY 1"
)

log = structlog.get_logger(__name__)


class GatewayRunningError(RuntimeError):
    """Another gateway works on this database and can't be joined; the message says which, and what to do."""


class GatewayLock(Protocol):
    """A gateway's claim on its database.

    `is_held` is False while another gateway may have taken it; `gateways` is how many shared it when that was last
    looked up, this one included, and `rank` which of them this one is: 0, 1 and so on, each taken once.
    """

    is_held: bool
    gateways: int
    rank: int

    async def keep(self) -> None:
        """Check the lock, and take it again when it was lost, until cancelled."""
        ...

    async def close(self) -> None:
        """Release the lock."""
        ...


async def take_lock(settings: Mapping[str, Any], incarnation: UUID, *, is_shared: bool = False) -> GatewayLock:
    """Return the lock of the database that `settings` (Django's) name, or raise `GatewayRunningError`.

    With `is_shared`, which SQLite never grants, other gateways may have it too, if they share it as well.
    """
    if "sqlite" in settings["ENGINE"]:
        return FileLock.take(Path(settings["NAME"]))
    lock = SessionLock(settings, incarnation, is_shared=is_shared)
    await lock.take()
    return lock


def count_gateways(cursor: CursorWrapper) -> int:
    """Return how many gateways have the lock of the PostgreSQL database that `cursor` is on."""
    cursor.execute("SELECT count(*) " + _HOLDERS, KEY)
    return int(cursor.fetchone()[0])


def gateways(cursor: Any) -> list[str]:
    """Return which gateways those are, by the names and addresses of their sessions."""
    cursor.execute(_NAMES, KEY)
    return [name for [name] in cursor.fetchall()]


class FileLock:
    """A lock on a file beside SQLite's, held until `close` or the process's end."""

    is_held = True
    gateways = 1
    rank = 0

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, database: Path) -> FileLock:
        """Take the lock of the database at that path, or raise `GatewayRunningError` naming the process that has it."""
        path = database.resolve()
        descriptor = os.open(f"{path}.gateway-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode().strip() or "unknown"
            os.close(descriptor)
            message = (
                f"{path} is already served by process {holder}. A database takes one gateway: stop that one first."
            )
            raise GatewayRunningError(message) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return cls(descriptor)

    async def keep(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


class SessionLock:
    """An advisory lock of PostgreSQL, in a session that does nothing else."""

    def __init__(self, settings: Mapping[str, Any], incarnation: UUID, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        given = session_arguments(settings, f"lock {incarnation}", _OPTIONS)
        self._name = given["application_name"]
        self._address = make_conninfo("", **{**given, "connect_timeout": CONNECT_SECONDS})
        self._session: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self.is_held = False
        self.gateways = 1
        self.rank = 0

    async def take(self) -> None:
        """Take the lock; raise `GatewayRunningError` when another gateway keeps it for longer than a restart takes."""
        for _ in range(TRIES):
            holder = await self._attempt()
            if holder is None:
                return
            await asyncio.sleep(TRY_SECONDS)
        await self.close()
        way_out = (
            "That one has no REDIS_URL: stop it, or start it again with this one's"
            if self._is_shared
            else "Without REDIS_URL a database takes one gateway: stop that one first, or give both the same Redis"
        )
        raise GatewayRunningError(f"This database is already served by {holder}. {way_out}.")

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                if self.is_held and self._session is not None:
                    async with asyncio.timeout(ANSWER_SECONDS):  # 3.11's wait_for can swallow a cancel
                        await self._count(self._session)
                elif (holder := await self._attempt()) is not None:
                    log.error("gateway_lock_taken_by_another", holder=holder)
            except (psycopg.Error, OSError, TimeoutError) as error:
                if self.is_held:
                    log.warning("gateway_lock_lost", error=str(error) or type(error).__name__)
                await self.close()

    async def close(self) -> None:
        self.is_held = False
        session, self._session = self._session, None
        if session is not None:
            session.pgconn.finish()  # without a closing message: the server may be unreachable
            with suppress(psycopg.Error, OSError):
                await session.close()

    async def _count(self, session: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        """Look up how many gateways there are, and which one this is, which also proves that the session lives."""
        others = "SELECT count(*), count(*) FILTER (WHERE l.pid < pg_backend_pid()) " + _HOLDERS
        counted = await (await session.execute(others, KEY)).fetchone()
        assert counted is not None, "a count is always one row"
        self.gateways, self.rank = counted[0] + 1, counted[1]

    async def _attempt(self) -> str | None:
        """Return None once the lock is ours, else who has it. A session of ours that is lost is ended by the server."""
        if self._session is None:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._session = await psycopg.AsyncConnection.connect(self._address, autocommit=True)
        async with asyncio.timeout(ANSWER_SECONDS):
            own = "SELECT pg_terminate_backend(l.pid) " + _HOLDERS + "AND a.application_name = %s"
            await self._session.execute(own, (*KEY, self._name))
            lock = "pg_try_advisory_lock_shared" if self._is_shared else "pg_try_advisory_lock"
            taken = await (await self._session.execute(f"SELECT {lock}(%s, %s)", KEY)).fetchone()
            if taken == (True,):
                await self._count(self._session)
                self.is_held = True
                log.info("gateway_lock_taken", is_shared=self._is_shared, gateways=self.gateways)
                return None
            found = await (await self._session.execute(_NAMES, KEY)).fetchone()
        return str(found[0]) if found else "another gateway"
