"""Flushes on PostgreSQL: one pipelined connection on the event loop, two round trips per flush."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, LiteralString, cast
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.pq import TransactionStatus

from billing.writer.decide import PutAside, decide
from billing.writer.errors import ConflictError, LostError
from billing.writer.operations import Answer, Operation
from billing.writer.postgresql import statements
from billing.writer.postgresql.statements import STATEMENTS, Query, Rows
from billing.writer.rows import closed_before
from billing.writer.state import Demand, View

ANSWER_SECONDS = 1.0
CONNECT_SECONDS = 5

# Prepared plans are made once, perhaps over empty tables: a sequential scan or a hash join must not be among them.
# The time-outs bound how long a frozen gateway, or a frozen neighbour, can hold up everybody else's wallets.
OPTIONS = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off -c timezone=UTC "
    "-c lock_timeout=100ms -c idle_in_transaction_session_timeout=1s"
)
CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
_DJANGOS_OWN = {"pool", "isolation_level", "server_side_binding", "assume_role", "options"}
STATEMENTS_SENT: Mapping[str, LiteralString] = cast("Any", STATEMENTS)  # text that no client has touched
_WARM = {"timestamptz": "epoch", "smallint": "0"}


class PostgreSQLDriver:
    """The one connection through which a gateway process writes credit to PostgreSQL."""

    rest = 0.0
    patience = 1.0
    reserve_wait = 2.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        fields = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        self._arguments = {name: settings[key] for name, key in fields.items() if settings.get(key)}
        extra = settings.get("OPTIONS", {})
        self._arguments |= {name: value for name, value in extra.items() if name not in _DJANGOS_OWN}
        self._options = " ".join(part for part in (extra.get("options"), OPTIONS) if part)
        self._connection: AsyncConnection[tuple[Any, ...]] | None = None

    async def flush(self, operations: Sequence[Operation], rolled: Collection[UUID]) -> list[Answer | PutAside]:
        """Apply the operations: lock and read, decide, write and commit."""
        try:
            connection = await self._connect()
        except (psycopg.Error, OSError) as error:
            raise LostError(f"cannot connect: {error}") from error
        attempt = asyncio.ensure_future(self._attempt(connection, operations, rolled))
        try:
            done, _ = await asyncio.wait({attempt}, timeout=ANSWER_SECONDS)
        except asyncio.CancelledError:
            await self._cut(connection, attempt)
            raise
        if not done:
            await self._cut(connection, attempt)
            if attempt.cancelled() or attempt.exception() is not None:
                raise LostError(f"no answer in {ANSWER_SECONDS} s")
        try:
            return attempt.result()
        except CONFLICTS as error:
            await self._roll_back(connection)
            raise ConflictError(str(error)) from error
        except Exception as error:
            if connection.closed or connection.broken:
                self._connection = None
                raise LostError(f"the connection went away: {error}") from error
            await self._roll_back(connection)
            raise

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _attempt(
        self, connection: AsyncConnection[tuple[Any, ...]], operations: Sequence[Operation], rolled: Collection[UUID]
    ) -> list[Answer | PutAside]:
        queries = [("begin", ()), *statements.reads(Demand.of(operations))]
        async with connection.pipeline() as pipeline:
            cursors = [await connection.execute(*_statement(query)) for query in queries]
            await pipeline.sync()
            results: list[Rows] = [await cursor.fetchall() for cursor in cursors[1:]]
            view = statements.view(queries[1:], results)
            await self._read_charges(connection, operations, view)
            answers, changes = decide(operations, view, rolled)
            writes = [*statements.writes(changes), ("commit", ())]  # encoded whole before the first is sent
            for query in writes:
                await connection.execute(*_statement(query))
            # Leaving the pipeline is the second sync; one here would make a third round trip, with nothing in it.
        return answers

    async def _read_charges(
        self, connection: AsyncConnection[tuple[Any, ...]], operations: Sequence[Operation], view: View
    ) -> None:
        """Ask how requests ended that are to be closed and aren't open: a round trip that is hardly ever needed."""
        closed = closed_before(operations, view)
        if closed:
            cursor = await connection.execute(*_statement(statements.charges_of(closed)))
            view.charges = {request: charge for request, charge in await cursor.fetchall()}  # noqa: C416 - typed

    async def _connect(self) -> AsyncConnection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            connection = await AsyncConnection.connect(
                **self._arguments,
                options=self._options,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="sluice writer",
            )
            connection.prepare_threshold = 0
            await self._prepare(connection)
            self._connection = connection
        return self._connection

    async def _prepare(self, connection: AsyncConnection[tuple[Any, ...]]) -> None:
        """Prepare every statement by running it over nothing: behind an error in a pipeline it would not be."""
        async with connection.pipeline():
            await connection.execute(STATEMENTS_SENT["begin"])
            for name, sql in STATEMENTS.items():
                if name not in ("begin", "commit", "rollback"):
                    kinds = re.findall(r"%s::(\w+(?:\[\])?)", sql)
                    await connection.execute(
                        STATEMENTS_SENT[name], ["{}" if kind.endswith("[]") else _WARM[kind] for kind in kinds]
                    )
            await connection.execute(STATEMENTS_SENT["commit"])

    async def _roll_back(self, connection: AsyncConnection[tuple[Any, ...]]) -> None:
        """End the failed transaction, which the server leaves open, since it skipped the COMMIT behind the error."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    await connection.execute(STATEMENTS_SENT["rollback"])
                await self._prepare(connection)  # psycopg forgets what it prepared at a rollback
        except (psycopg.Error, OSError, TimeoutError):
            self._connection = None
            await connection.close()

    async def _cut(self, connection: AsyncConnection[tuple[Any, ...]], attempt: asyncio.Future[Any]) -> None:
        """End the connection under a flush that isn't answered: a cancel request would wait for the same server."""
        self._connection = None
        if not attempt.done():
            with suppress(OSError, psycopg.Error):
                copy = socket.socket(fileno=os.dup(connection.fileno()))
                try:
                    copy.shutdown(socket.SHUT_RDWR)
                finally:
                    copy.close()
            await asyncio.wait({attempt}, timeout=ANSWER_SECONDS)
            if not attempt.done():
                attempt.cancel()
        await connection.close()


def _statement(query: Query) -> tuple[LiteralString, tuple[str, ...]]:
    return STATEMENTS_SENT[query[0]], query[1]
