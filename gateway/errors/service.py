"""What gateway's services and threads raise."""

from __future__ import annotations


class ServiceError(Exception):
    """A service refused: `field` names the input that was wrong ("" for none), the message says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class DatabaseBusyError(Exception):
    """More questions wait for the database than it answers: nothing was asked."""
