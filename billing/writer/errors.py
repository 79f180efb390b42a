"""What can go wrong with the writer, for its callers."""

from __future__ import annotations


class WriterError(Exception):
    """The operation could not be applied; nothing of it was, unless it says that the outcome is unknown."""


class WriterBusyError(WriterError):
    """The writer is behind or its database is away: try again shortly."""


class WriterClosedError(WriterError):
    """The writer was closed before the operation was applied."""


class ConflictError(Exception):
    """Another transaction was in the way; nothing was applied and the same flush may be sent again."""


class BusyError(ConflictError):
    """Somebody else has the whole database to themselves: a smaller flush would fare no better."""


class LostError(Exception):
    """The connection went away before the answer: whether the flush was applied is unknown until asked by id."""
