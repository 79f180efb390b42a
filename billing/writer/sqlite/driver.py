"""Flushes on SQLite: a thread and a connection of their own, one immediate transaction per flush."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from base.clock import parsed
from billing.writer.decide import decide
from billing.writer.entry import BusyError
from billing.writer.known import KnownWallets
from billing.writer.operations import Answer, Locked, Operation
from billing.writer.sqlite import statements
from billing.writer.sqlite.statements import STATEMENTS
from billing.writer.view import Demand, View

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "recursive_triggers=ON", "foreign_keys=ON")
LOCK_SECONDS = 5.0


class SQLiteDriver:
    """The one connection through which a gateway process writes credit to SQLite."""

    rest = 0.002  # a writer that commits back to back starves the other processes
    max_age = 5.0
    reserve_timeout = 5.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._path = str(settings["NAME"])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sluice-writer")
        self._connection: sqlite3.Connection | None = None
        self._newest = datetime.max.replace(tzinfo=UTC)  # what the clock said last, or a hold says that is open
        self._known = KnownWallets()
        self._version = -1  # of the file's data, as the last flush found it

    async def flush(self, operations: Sequence[Operation], *, waits: bool = False) -> list[Answer | Locked]:
        """Apply the operations in the writer's thread; SQLite's one lock is always waited for."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._flush, operations)

    async def close(self) -> None:
        """Close the connection and end the thread, after the flush that may still run in it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _flush(self, operations: Sequence[Operation]) -> list[Answer | Locked]:
        remembered = self._known
        try:
            return self._attempt(operations)
        except sqlite3.IntegrityError:
            if not remembered:
                raise
            return self._attempt(operations)  # what was remembered lacked a hold of another process: read it

    def _attempt(self, operations: Sequence[Operation]) -> list[Answer | Locked]:
        connection = self._connect()
        is_applied = False
        try:
            connection.execute(STATEMENTS["begin"])
            view, burning = self._read(connection, operations)
            self._newest = max(self._newest, view.now)
            answers, changes = decide(operations, view)
            statements.write(connection, changes)
            connection.execute(STATEMENTS["commit"])
            self._known.committed(view, changes, burning)
            is_applied = True
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise BusyError(str(error)) from error
            raise
        finally:
            if not is_applied:
                self._known = KnownWallets()
            if connection.in_transaction:
                connection.execute(STATEMENTS["rollback"])
        return answers

    def _read(self, connection: sqlite3.Connection, operations: Sequence[Operation]) -> tuple[View, Container[UUID]]:
        """Return what the operations need, read only where it isn't known, and the wallets whose grants that has."""
        [version] = connection.execute(STATEMENTS["data_version"]).fetchone()
        if version != self._version:
            self._version, self._known = version, KnownWallets()
        now = statements.read_clock(connection)
        if now >= self._newest and (view := self._known.view(operations, now)) is not None:
            return view, view.grants
        demand = Demand.of(operations)
        return statements.read(connection, operations, demand, self._newest), demand.burning

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=LOCK_SECONDS)
            for pragma in PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            [newest] = connection.execute("SELECT max(reserved_at) FROM billing_hold").fetchone()
            self._newest = parsed(newest) if newest else datetime.min.replace(tzinfo=UTC)
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
