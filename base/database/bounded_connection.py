"""Django's connections to PostgreSQL with a time limit for every answer.

A middlebox that forgot a connection may go on acknowledging what is sent: neither the kernel nor the server notices,
so the client needs a limit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg_pool import ConnectionPool

LONGEST_SECONDS = 35.0
"""Seconds. Above the server's own limit for a statement: an answer that takes longer will never come."""
CHECK_SECONDS = 2.0

_patience: ContextVar[float | None] = ContextVar("answer_seconds", default=None)

RV = TypeVar("RV")


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """Within the context, connections wait at most `seconds` for each answer."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection on which an answer that doesn't come in time is an OperationalError.

    `answer_seconds` is the limit, None for none; `answered_within` may lower it. When it passes, the connection and
    the idle ones of its pool are closed, since they probably went through the same middlebox.
    """

    answer_seconds: float | None = LONGEST_SECONDS

    def execute(self, *arguments: Any, **options: Any) -> Any:
        """Execute as psycopg does, within `CHECK_SECONDS`: Django uses cursors, so this is the pool's health check."""
        with answered_within(CHECK_SECONDS):
            return super().execute(*arguments, **options)

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Return what `gen` does, or raise OperationalError with the connection closed."""
        limit = self.answer_seconds if timeout is None else None
        if limit is not None:
            limit = min(limit, _patience.get() or limit)
        try:
            return super().wait(gen, interval, timeout if limit is None else limit)
        except errors._WaitTimeout as error:  # noqa: SLF001 - psycopg has no public name for it
            if limit is None:
                raise
            self.pgconn.finish()
            pool = getattr(self, "_pool", None)
            if isinstance(pool, ConnectionPool):
                pool.drain()
            raise psycopg.OperationalError(f"no answer in {limit} s: the connection is closed") from error
