"""Flushes on PostgreSQL: one pipelined connection on the event loop, two round trips per flush."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, LiteralString, cast

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.pq import TransactionStatus

from billing.writer.decide import decide
from billing.writer.errors import ConflictError, LostError
from billing.writer.operations import Answer, Locked, Operation
from billing.writer.postgresql import statements
from billing.writer.postgresql.statements import STATEMENTS, Query, Rows
from billing.writer.view import Demand, Rest, View

ANSWER_SECONDS = 1.0
CONNECT_SECONDS = 5.0
LOSS_COUNTS_SECONDS = 60.0
LONGEST_ANSWER_SECONDS = 16.0
"""Below the time limits that the server sets to a statement: what is asked again is never still being applied."""

# Prepared plans are made once, perhaps over empty tables: a sequential scan or a hash join must not be among them.
# The limits come after those of the configuration, which hold for every connection, and are stricter: they bound how
# long a frozen gateway, or a frozen neighbour, can hold up everybody else's wallets.
OPTIONS = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off -c timezone=UTC "
    "-c lock_timeout=100ms -c idle_in_transaction_session_timeout=1s"
)
CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
_DJANGOS_OWN = {"pool", "isolation_level", "server_side_binding", "assume_role", "options"}
_WARM = {"timestamptz": "epoch", "smallint": "0"}

Connection = AsyncConnection[tuple[Any, ...]]


class PostgreSQLDriver:
    """The one connection through which a gateway process writes credit to PostgreSQL.

    An answer that doesn't come in `answer_seconds` is given up, and asked for again with twice the time, so that a
    slow database is slow and a silent one is left soon. The limit is never below twice the time that the last answer
    took, and falls again only a minute after a loss: what is asked again, or skips a lock, may be answered at once.
    """

    rest = 0.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        fields = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        self._arguments = {name: settings[key] for name, key in fields.items() if settings.get(key)}
        extra = settings.get("OPTIONS", {})
        self._arguments |= {name: value for name, value in extra.items() if name not in _DJANGOS_OWN}
        self._options = " ".join(part for part in (extra.get("options"), OPTIONS) if part)
        self._connection: Connection | None = None
        self.answer_seconds = ANSWER_SECONDS
        self._lost_at = -LOSS_COUNTS_SECONDS

    @property
    def patience(self) -> float:
        """As long as one answer may take."""
        return self.answer_seconds

    @property
    def reserve_wait(self) -> float:
        """As long as the flush in flight and the next one may take."""
        return 2 * self.answer_seconds

    async def flush(self, operations: Sequence[Operation], *, waits: bool = False) -> list[Answer | Locked]:
        """Apply the operations: lock and read, decide, write and commit."""
        try:
            async with asyncio.timeout(max(CONNECT_SECONDS, self.answer_seconds)):
                connection = await self._connect()
        except (psycopg.Error, OSError) as error:
            raise LostError(f"cannot connect: {error}") from error
        started = time.monotonic()
        attempt = asyncio.ensure_future(self._attempt(connection, operations, waits=waits))
        try:
            done, _ = await asyncio.wait({attempt}, timeout=self.answer_seconds)
        except asyncio.CancelledError:
            await self._cut(connection, attempt)
            raise
        if not done:
            self._lost_at = time.monotonic()
            limit, self.answer_seconds = self.answer_seconds, min(2 * self.answer_seconds, LONGEST_ANSWER_SECONDS)
            await self._cut(connection, attempt)
            if attempt.cancelled() or attempt.exception() is not None:
                raise LostError(f"no answer in {limit} s")
        try:
            answers = attempt.result()
        except CONFLICTS as error:
            await self._roll_back(connection)
            raise ConflictError(str(error)) from error
        except Exception as error:
            if connection.closed or connection.broken:
                self._connection = None
                raise LostError(f"the connection went away: {error}") from error
            await self._roll_back(connection)
            raise
        now = time.monotonic()
        least = self.answer_seconds if now - self._lost_at < LOSS_COUNTS_SECONDS else ANSWER_SECONDS
        self.answer_seconds = min(max(least, 2 * (now - started)), LONGEST_ANSWER_SECONDS)
        return answers

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _attempt(
        self, connection: Connection, operations: Sequence[Operation], *, waits: bool
    ) -> list[Answer | Locked]:
        demand = Demand.of(operations)
        queries = [("begin", ()), *statements.reads(demand, waits=waits)]
        async with connection.pipeline() as pipeline:
            cursors = [await connection.execute(*_statement(query)) for query in queries]
            await pipeline.sync()
            results: list[Rows] = [await cursor.fetchall() for cursor in cursors[1:]]
            view = statements.view(queries[1:], results)
            await self._read_rest(connection, operations, demand, view)
            answers, changes = decide(operations, view)
            writes = [*statements.encoded(changes), ("commit", ())]  # encoded whole before the first is sent
            for query in writes:
                await connection.execute(*_statement(query))
            # Leaving the pipeline is the second sync; one here would make a third round trip, with nothing in it.
        return answers

    async def _read_rest(
        self, connection: Connection, operations: Sequence[Operation], demand: Demand, view: View
    ) -> None:
        """Ask for what only the first answers show to be needed: a round trip that there hardly ever is."""
        rest = Rest.of(operations, demand, view)
        queries = statements.reads_of_rest(rest)
        if queries:
            cursors = [await connection.execute(*_statement(query)) for query in queries]
            statements.complete(view, rest, queries, [await cursor.fetchall() for cursor in cursors])

    async def _connect(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = await AsyncConnection.connect(
                **self._arguments, options=self._options, autocommit=True, application_name="sluice writer"
            )
            connection.prepare_threshold = 0
            try:
                await self._prepare(connection)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _prepare(self, connection: Connection) -> None:
        """Prepare every statement by running it over nothing: behind an error in a pipeline it would not be."""
        async with connection.pipeline():
            await connection.execute(*_statement(("begin", ())))
            for name in ("clock", *STATEMENTS):
                if name not in ("begin", "commit", "rollback"):
                    sql, _ = _statement((name, ()))
                    kinds = re.findall(r"%s::(\w+(?:\[\])?)", sql)
                    await connection.execute(sql, ["{}" if kind.endswith("[]") else _WARM[kind] for kind in kinds])
            await connection.execute(*_statement(("commit", ())))

    async def _roll_back(self, connection: Connection) -> None:
        """End the failed transaction, which the server leaves open, since it skipped the COMMIT behind the error."""
        try:
            async with asyncio.timeout(self.answer_seconds):
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    await connection.execute(*_statement(("rollback", ())))
                await self._prepare(connection)  # psycopg forgets what it prepared at a rollback
        except (psycopg.Error, OSError, TimeoutError):
            self._connection = None
            await connection.close()

    async def _cut(self, connection: Connection, attempt: asyncio.Future[Any]) -> None:
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
    return cast("Any", statements.sql_of(query)), query[1]  # text that no client has touched
