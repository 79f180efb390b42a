"""The writer as the data plane sees it, so that tests may stand in for it."""

from __future__ import annotations

from typing import Protocol

from billing.writer.operations import Answer, Operation


class Ledger(Protocol):
    """Applies operations in groups and answers each one; raises WriterError (WriterBusyError when it is full)."""

    @property
    def oldest_age(self) -> float:
        """Seconds for which the oldest unanswered operation has waited."""
        ...

    async def submit(self, operation: Operation) -> Answer: ...

    async def close(self) -> None: ...
