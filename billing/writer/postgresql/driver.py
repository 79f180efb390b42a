"""Flushes on PostgreSQL: one pipelined connection on the event loop, two round trips per flush, or one (`known.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.pq import TransactionStatus

from base.database.connections import session_arguments
from billing.writer.decide import decide
from billing.writer.entry import RESEND_SECONDS, ConflictError, OutcomeUnknownError
from billing.writer.known import KnownWallets
from billing.writer.operations import Answer, Locked, Operation
from billing.writer.postgresql import statements
from billing.writer.postgresql.pipeline import Connection, Pipeline, Statement
from billing.writer.postgresql.statements import STATEMENTS, Query
from billing.writer.view import Demand, FollowUp, View

ANSWER_SECONDS = 1.0
CONNECT_SECONDS = 5.0
LOSS_COUNTS_SECONDS = 60.0
MAX_ANSWER_SECONDS = 16.0
"""Below the server's own limit for a statement: a flush that is sent again is never still being applied."""

# Plans are made once (left to itself, the server plans most of these anew each time: a third of a small flush), perhaps
# over empty tables: a sequential scan or a hash join must not be among them.
# The limits override those of the configuration, which are for every connection, and are stricter: they bound how long
# a gateway process that hangs can keep wallets locked.
OPTIONS = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off -c timezone=UTC "
    "-c plan_cache_mode=force_generic_plan -c lock_timeout=100ms -c idle_in_transaction_session_timeout=1s"
)
CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)


class PostgreSQLDriver:
    """The one connection through which a gateway process writes credit to PostgreSQL.

    An answer that doesn't come within `answer_timeout` seconds is given up, and the flush is sent again with twice the
    time: a slow database still gets its work done, and a silent one is given up soon. The timeout is never below twice
    the time that the last answer took, and falls only a minute after a loss, since flushes sent again (and flushes that
    skip locks) may be answered at once and say little about the database.
    """

    rest = 0.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._arguments = session_arguments(settings, "writer", OPTIONS)
        self._connection: Connection | None = None
        self.answer_timeout = ANSWER_SECONDS
        self._lost_at = -LOSS_COUNTS_SECONDS
        self._newest = datetime.max.replace(tzinfo=UTC)  # what the clock said last, or a hold says that is open
        self._read_at = 0.0  # when that was so, by the monotonic clock
        self._known = KnownWallets()

    @property
    def max_age(self) -> float:
        """Seconds that one answer may take."""
        return self.answer_timeout

    @property
    def reserve_timeout(self) -> float:
        """Seconds that the flush in flight and the next one may take together, as long as a reserve may be sent again:
        a later answer could be about a hold whose lease is over.
        """
        return min(2 * self.answer_timeout, RESEND_SECONDS)

    async def flush(self, operations: Sequence[Operation], *, waits: bool = False) -> list[Answer | Locked]:
        """Apply the operations: lock and read, decide, write and commit."""
        try:
            connection = self._connection
            if connection is None or connection.closed:
                async with asyncio.timeout(max(CONNECT_SECONDS, self.answer_timeout)):
                    connection = await self._connect()
        except (psycopg.Error, OSError) as error:
            raise OutcomeUnknownError(f"cannot connect: {error}") from error
        started = time.monotonic()
        limit = self.answer_timeout
        try:
            async with asyncio.timeout(limit):
                answers = await self._attempt(connection, operations, waits=waits)
        except asyncio.CancelledError:
            await self._leave(connection)
            raise
        except TimeoutError as error:
            self._lost_at = time.monotonic()
            self.answer_timeout = min(2 * limit, MAX_ANSWER_SECONDS)
            await self._leave(connection)
            raise OutcomeUnknownError(f"no answer in {limit} s") from error
        except CONFLICTS as error:
            await self._roll_back(connection)
            raise ConflictError(str(error)) from error
        except errors.ReadOnlySqlTransaction as error:  # nothing was applied, and nothing will be over this connection
            await self._leave(connection)
            raise OutcomeUnknownError(f"this server takes no writes any more, another one may: {error}") from error
        except Exception as error:
            if connection.closed or connection.broken:
                self._connection = None
                raise OutcomeUnknownError(f"the connection went away: {error}") from error
            await self._roll_back(connection)
            raise
        now = time.monotonic()
        least = self.answer_timeout if now - self._lost_at < LOSS_COUNTS_SECONDS else ANSWER_SECONDS
        self.answer_timeout = min(max(least, 2 * (now - started)), MAX_ANSWER_SECONDS)
        return answers

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._pipeline.rest()
            await self._connection.close()
            self._connection = None

    async def _attempt(
        self, connection: Connection, operations: Sequence[Operation], *, waits: bool
    ) -> list[Answer | Locked]:
        pipeline = self._pipeline
        await self._prepare(pipeline)
        with pipeline.opened():
            if not waits and (known := await self._attempt_as_known(connection, operations)) is not None:
                return known
            demand = Demand.of(operations)
            queries: list[Query] = [("begin", ()), *statements.reads(demand, waits=waits)]
            results = await pipeline.exchange([_statement(query) for query in queries])
            view = statements.view(queries[1:], results[1:])
            first: list[Query] = []
            if view.now < self._newest:
                view.redate_holds()
                first = [statements.redating(view)]
            else:
                self._newest, self._read_at = view.now, time.monotonic()
            first = await self._follow_up(operations, demand, view, first)
            answers, changes = decide(operations, view)
            writes = [*first, *statements.encoded(changes), ("commit", ())]  # whole before the first is sent
            await pipeline.exchange([_statement(query) for query in writes])
        self._known.committed(view, changes, demand.burning)
        return answers

    async def _attempt_as_known(
        self, connection: Connection, operations: Sequence[Operation]
    ) -> list[Answer | Locked] | None:
        """Apply the operations in one round trip to wallets as this process left them; None, with nothing applied,
        where they can't be or aren't so.
        """
        moment = time.monotonic()
        view = self._known.view(operations, self._newest + timedelta(seconds=moment - self._read_at))
        if view is None:
            return None
        is_applied = False
        try:
            answers, changes = decide(operations, view)
            if changes.wallets.keys() == view.wallets.keys():  # else one was refused: that is never said from memory
                queries = statements.encoded_as_known(view, changes)
                await self._pipeline.exchange([_statement(query) for query in queries])
                is_applied = True
        except (psycopg.Error, ValueError):
            if connection.closed or connection.broken:
                raise
        finally:
            if not is_applied:
                self._known.forget(view.wallets)
        if not is_applied:
            return None
        self._newest, self._read_at = view.now, moment
        self._known.committed(view, changes, view.grants)
        return answers

    async def _follow_up(
        self, operations: Sequence[Operation], demand: Demand, view: View, first: list[Query]
    ) -> list[Query]:
        """Read, after `first`, the rows that only the first answers show to be needed: a further round trip, hardly
        ever made. Return what of `first` is still to be sent.
        """
        rest = FollowUp.of(operations, demand, view)
        queries = statements.follow_up_reads(rest)
        if not queries:
            return first
        results = await self._pipeline.exchange([_statement(query) for query in (*first, *queries)])
        statements.complete(view, rest, queries, results[len(first) :])
        return []

    async def _connect(self) -> Connection:
        connection = await AsyncConnection.connect(**self._arguments, autocommit=True)
        try:
            self._newest, self._read_at = await _newest_hold(connection), 0.0
            self._pipeline = Pipeline(connection)
            await self._prepare(self._pipeline)
            self._known = KnownWallets()
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    async def _prepare(self, pipeline: Pipeline) -> None:
        """Prepare the statements that aren't prepared yet."""
        if not pipeline.is_prepared(statements.sql_of(("clock", ()))):  # the last, which tests replace
            await pipeline.prepare({name: statements.sql_of((name, ())) for name in (*STATEMENTS, "clock")})

    async def _roll_back(self, connection: Connection) -> None:
        """End the failed transaction, which the server leaves open, since it skipped the COMMIT behind the error."""
        try:
            async with asyncio.timeout(self.answer_timeout):
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    await connection.execute(STATEMENTS["rollback"], prepare=False)
        except (psycopg.Error, OSError, TimeoutError):
            self._connection = None
            await connection.close()

    async def _leave(self, connection: Connection) -> None:
        """Close the connection of a flush that isn't answered: a cancel request would wait for the same server."""
        self._connection = None
        await connection.close()


def _statement(query: Query) -> Statement:
    return statements.sql_of(query), query[1]


async def _newest_hold(connection: Connection) -> datetime:
    """Return when the newest open hold was reserved, as it says itself."""
    cursor = await connection.execute("SELECT max(reserved_at) FROM billing_hold", prepare=False)
    [[moment]] = await cursor.fetchall()
    return moment or datetime.min.replace(tzinfo=UTC)
