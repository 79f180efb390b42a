"""The actor and address of the current request: set by the middleware, read by the audit trail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.http import HttpRequest

from tenancy.models import AdminAPIKey, APIKey, User


@dataclass(slots=True)
class Origin:
    """The origin of a change: a request (with its API key or the service that signed it, once authenticated), or a
    command when there is none.
    """

    request: HttpRequest | None = None
    request_id: UUID | None = None
    key: APIKey | None = None
    admin_key: AdminAPIKey | None = None
    service: str = ""

    @property
    def user(self) -> User | None:
        """The signed-in user, None without one."""
        user = getattr(self.request, "user", None)
        return user if isinstance(user, User) else None

    @property
    def address(self) -> str:
        """The client's address, as the HTTP server determined it from trusted proxies."""
        return "" if self.request is None else str(self.request.META.get("REMOTE_ADDR") or "")

    @property
    def actor(self) -> str:
        """The user, key, service or command as text for the trail."""
        if self.key is not None:
            return f"key {self.key}"
        if self.admin_key is not None:
            return f"admin key {self.admin_key}"
        if self.user is not None:
            return self.user.email
        return self.service or ("anonymous" if self.request is not None else _command())


_origin: ContextVar[Origin | None] = ContextVar("sluice_origin", default=None)


def current() -> Origin:
    """Return the current origin: the request being answered, else the running command."""
    return _origin.get() or Origin()


@contextmanager
def asked_by(request: HttpRequest, request_id: UUID) -> Iterator[None]:
    """Within the context, recorded events have `request` as their origin."""
    token = _origin.set(Origin(request, request_id))
    try:
        yield
    finally:
        _origin.reset(token)


_reason: ContextVar[str] = ContextVar("sluice_reason", default="")


@contextmanager
def because(reason: str) -> Iterator[None]:
    """Within the context, recorded events have the `reason` that somebody gave for the change."""
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)


def reason_given() -> str:
    """Return the reason that was given for the present change; empty without one."""
    return _reason.get()


def _command() -> str:
    name = Path(sys.argv[0]).name
    return f"manage.py {sys.argv[1]}" if name == "manage.py" and len(sys.argv) > 1 else name or "python"
