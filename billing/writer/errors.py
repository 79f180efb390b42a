"""The writer's errors: WriterError and its kinds for callers, the others between drivers and queue."""

from __future__ import annotations


class WriterError(Exception):
    """The operation could not be applied and changed nothing, unless the message says that the outcome is unknown."""


class WriterBusyError(WriterError):
    """The writer is behind, its database is unreachable, or the wallet stays locked: try again shortly."""


class WriterClosedError(WriterError):
    """The writer was closed before it could answer; an operation that was in flight may have been applied."""


class ConflictError(Exception):
    """Another transaction was in the way; nothing was applied and the same flush may be sent again."""


class BusyError(ConflictError):
    """Another process has locked the whole database (SQLite): a smaller flush would conflict as well."""


class OutcomeUnknownError(Exception):
    """The connection was lost before the answer: only sending the same operations again tells whether they were
    applied.
    """
