"""The contract of a database driver, and the driver of each configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from billing.writer.operations import Answer, Locked, Operation


class Driver(Protocol):
    """Applies flushes, one at a time, on a connection of its own.

    All three limits are seconds. `rest`: how long the lock stays free between two commits. `max_age`: once the oldest
    operation that isn't waiting for a lock is older, new reserves are refused. `reserve_timeout`: how long a reserve
    waits for its answer. The last two grow with the time that the database takes.
    """

    @property
    def rest(self) -> float: ...

    @property
    def max_age(self) -> float: ...

    @property
    def reserve_timeout(self) -> float: ...

    async def flush(self, operations: Sequence[Operation], *, waits: bool = False) -> list[Answer | Locked]:
        """Apply the operations in one transaction and return an answer to each, after the commit.

        An operation whose wallet or hold another transaction has locked is answered Locked and changes nothing; with
        `waits` the flush queues for the lock instead, as long as the connection's lock timeout allows. Raises
        ConflictError (nothing was applied, try again), OutcomeUnknownError (send the same operations again), or the
        error that makes the flush impossible (nothing was applied).
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
