"""How a flush reaches a database: what the queue asks of a connection, and which one a configuration needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from billing.writer.decide import PutAside
from billing.writer.operations import Answer, Operation


class Driver(Protocol):
    """Applies flushes, one at a time, on a connection of its own.

    `rest` is how many seconds the lock stays free after a commit when more is waiting. `patience` is the age in
    seconds of the oldest waiting operation from which reserves are refused; `reserve_wait` is how long one reserve
    waits for its answer.
    """

    rest: float
    patience: float
    reserve_wait: float

    async def flush(self, operations: Sequence[Operation], rolled: Collection[UUID]) -> list[Answer | PutAside]:
        """Apply all of the operations in one transaction and return an answer to each, after the commit.

        Raises ConflictError (nothing applied, try again), LostError (outcome unknown, ask again by the same flush), or
        whatever made the flush impossible (nothing applied).
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
