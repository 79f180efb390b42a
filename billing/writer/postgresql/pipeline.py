"""Many statements in one round trip, on libpq's pipeline mode itself.

psycopg's pipeline waits for the socket before it sends each statement, and keeps a cursor for each: for the dozen
statements of a flush that costs more than everything else in it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Rows = list[tuple[Any, ...]]
Statement = tuple[str, Sequence[str]]  # SQL with a %s for each parameter, and their texts

_FAILED = frozenset({ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE})


class Pipeline:
    """Sends prepared statements over `connection`, which nobody else uses meanwhile.

    Statements are prepared by their text, once in the connection's life: a rollback doesn't forget them.
    """

    def __init__(self, connection: Connection) -> None:
        self._wire = connection.pgconn
        self._transformer = Transformer(connection)
        self._names: dict[str, bytes] = {}
        self._watch = _Watch(connection.pgconn.socket)

    async def prepare(self, statements: Mapping[str, str]) -> None:
        """Prepare those of `statements` (SQL by name) that aren't yet, in one round trip."""
        new = {sql: f"{name}_{len(self._names)}".encode() for name, sql in statements.items() if sql not in self._names}
        with self.opened():
            for sql, name in new.items():
                self._wire.send_prepare(name, _numbered(sql))
            await self._synced()
        self._names |= new

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have the connection in pipeline mode inside the block; after an error it is left at rest."""
        self._wire.enter_pipeline_mode()
        try:
            yield
        except BaseException:
            self.rest()
            raise
        finally:
            with suppress(psycopg.OperationalError):  # of a connection that is lost, as its user has been told
                self._wire.exit_pipeline_mode()

    def rest(self) -> None:
        """Look at the connection's socket no longer, until the next exchange; before it is closed, this is called."""
        self._watch.close()

    def is_prepared(self, sql: str) -> bool:
        """Whether `exchange` may be given it."""
        return sql in self._names

    async def exchange(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run prepared statements in one round trip and return the rows of each, in pipeline mode.

        Raise the first error; the server has skipped what came behind it.
        """
        ready = [(self._names[sql], [text.encode() for text in parameters]) for sql, parameters in statements]
        for name, texts in ready:
            self._wire.send_query_prepared(name, texts, result_format=Format.BINARY)
        return [self._rows(result) for result in await self._synced()]

    def _rows(self, result: PGresult) -> Rows:
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _synced(self) -> list[PGresult]:
        """Send what is queued with a sync behind it, and return the results up to that."""
        wire, watch, found = self._wire, self._watch, []
        wire.pipeline_sync()
        while wire.flush():
            await watch.writable_or_readable()
            wire.consume_input()
        is_between = False
        while True:
            while wire.is_busy():
                await watch.readable()
                wire.consume_input()
            result = wire.get_result()
            if result is None:
                if is_between:
                    raise psycopg.OperationalError("the server hung up")
                is_between = True
                continue
            is_between = False
            if result.status == ExecStatus.PIPELINE_SYNC:
                break
            found.append(result)
        for result in found:
            if result.status in _FAILED:
                raise error_from_result(result)
        return found


def _numbered(sql: str) -> bytes:
    """Return the statement with the parameters as the protocol has them: $1, $2…"""
    number = count(1)
    return re.sub("%s", lambda _: f"${next(number)}", sql).encode()


class _Watch:
    """Waits for a socket. The loop looks at it from the first wait on and between two, since to begin anew costs more,
    until something comes for which nobody waits, or `close`: at a descriptor of its own, since psycopg has the loop
    look at the connection's where it waits itself.
    """

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._looked_at: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._unasked = 0  # wakes since the last wait; the first may have been on its way already

    def close(self) -> None:
        """Look at the socket no longer."""
        if self._looked_at is not None:
            self._loop.remove_reader(self._looked_at)
            os.close(self._looked_at)
            self._looked_at = None

    async def readable(self) -> None:
        if self._looked_at is None:
            self._looked_at = os.dup(self._socket)
            self._loop.add_reader(self._looked_at, self._wake)
        self._waiter = self._loop.create_future()
        self._unasked = 0
        await self._waiter

    async def writable_or_readable(self) -> None:
        self._loop.add_writer(self._socket, self._wake)
        try:
            await self.readable()
        finally:
            self._loop.remove_writer(self._socket)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
            return
        self._unasked += 1
        if self._unasked > 1:  # the server hangs up, or says what the next exchange will read
            self.close()
