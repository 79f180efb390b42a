"""How a flush reaches a database: what the queue asks of a connection, and which one a configuration needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from billing.writer.operations import Answer, Locked, Operation


class Driver(Protocol):
    """Applies flushes, one at a time, on a connection of its own.

    `rest` is how many seconds the lock stays free after a commit when more is waiting. `patience` is the age in
    seconds of the oldest operation that could be applied from which reserves are refused; `reserve_wait` is how long
    one reserve waits for its answer. Both grow with the time that the database takes.
    """

    @property
    def rest(self) -> float: ...

    @property
    def patience(self) -> float: ...

    @property
    def reserve_wait(self) -> float: ...

    async def flush(self, operations: Sequence[Operation], *, waits: bool = False) -> list[Answer | Locked]:
        """Apply the operations in one transaction and return an answer to each, after the commit.

        An operation whose wallet or hold somebody else has locked is answered Locked, and nothing of it was done; one
        that `waits` takes its turn in the queue for the lock instead, for a moment. Raises ConflictError (nothing
        applied, try again), LostError (outcome unknown, ask again by the same operations), or whatever made the flush
        impossible (nothing applied).
        """
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


def driver_for(settings: Mapping[str, Any]) -> Driver:
    """Return the driver for a Django database configuration (not connected yet)."""
    if "sqlite" in settings["ENGINE"]:
        from billing.writer.sqlite.driver import SQLiteDriver

        return SQLiteDriver(settings)
    from billing.writer.postgresql.driver import PostgreSQLDriver

    return PostgreSQLDriver(settings)
