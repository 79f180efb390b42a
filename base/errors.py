"""Errors of the gateway's services and database threads."""

from __future__ import annotations


class ServiceError(Exception):
    """A service refused: `field` names the input that was wrong ("" for none), the message says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class RoleError(ServiceError):
    """A service refused since the caller's role doesn't allow it."""


class DatabaseBusyError(Exception):
    """Too many calls wait for a database thread: this one was not made."""
