"""The caller of a websocket, or of a request by our own pages: an API key, or a signed-in user. Checked again for each
message.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.http import parse_cookie

from base.http import Scope, header_of
from gateway.errors.refusal import Refusal
from gateway.http.access import (
    address_of,
    bearer_of,
    missing_key,
    needed_scope,
    note_caller,
    note_principal,
    require_use,
)
from gateway.http.bounds import client_network
from gateway.http.request import runtime_of
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime

PROJECT_FIELD = "sluice_project"
_PORTS = {"http": 80, "https": 443}


class Caller(Protocol):
    """The authenticated caller of a websocket; `principal` checks again at each call."""

    @property
    def wants_account(self) -> bool:
        """Whether the caller wants Sluice's own events and fields."""
        ...

    @property
    def owner(self) -> UUID:
        """Whose socket it is: the key's tenant, or the user."""
        ...

    async def principal(self, metadata: Mapping[str, str]) -> Principal:
        """Return the principal that a message with this metadata is charged to; a Refusal if it may not ask any
        more.
        """
        ...


async def asker_of(scope: Scope) -> Principal:
    """The principal of a request over HTTP by a key or by a person at our own pages, whose project is in the
    address.
    """
    return await (await caller_of(scope)).principal({})


async def caller_of(scope: Scope) -> Caller:
    """The caller of a handshake or request, or the Refusal that answers it.

    A bearer key needs no Origin. A session, whose cookie a browser sends for any page, needs one of our own pages'.
    """
    runtime = runtime_of(scope)
    query = _query_of(scope)
    token = bearer_of(scope)
    if token is not None:
        return await KeyCaller.enter(runtime, scope, token, wants_account=query.get("sluice") == ["1"])
    session = _session_of(scope)
    if session is None:
        raise missing_key()
    if not _is_same_origin(scope):
        raise Refusal(403, "origin_not_allowed", "This page may not use your session here.")
    caller = await SessionCaller.enter(runtime, session, project=query.get("project", [None])[-1])
    note_caller(scope, user=caller.owner)
    return caller


class KeyCaller:
    """A holder of an API key."""

    def __init__(self, runtime: Runtime, token: str, needed: str, address: str, *, wants_account: bool) -> None:
        self._runtime = runtime
        self._token = token
        self._needed = needed
        self._address = address
        self.wants_account = wants_account
        self.owner = UUID(int=0)

    @classmethod
    async def enter(cls, runtime: Runtime, scope: Scope, token: str, *, wants_account: bool) -> KeyCaller:
        """The holder of `token`, if the key is good."""
        caller = cls(runtime, token, needed_scope(scope), address_of(scope), wants_account=wants_account)
        principal = await caller.principal({})
        caller.owner = principal.tenant
        note_principal(scope, principal)
        return caller

    async def principal(self, metadata: Mapping[str, str]) -> Principal:
        """The key's principal, as long as the key is good."""
        if not self._token:
            raise missing_key()
        principal = await self._runtime.principals.by_key(self._token, client_network(self._address))
        require_use(principal, self._needed, self._address)
        return principal


class SessionCaller:
    """A signed-in user, who says with each message which project is charged."""

    wants_account = True

    def __init__(self, runtime: Runtime, session: str, *, project: str | None) -> None:
        self._runtime = runtime
        self._session = session
        self._project = project
        self.owner = UUID(int=0)

    @classmethod
    async def enter(cls, runtime: Runtime, session: str, *, project: str | None) -> SessionCaller:
        """The user of `session`, if they are signed in."""
        caller = cls(runtime, session, project=project)
        caller.owner = await caller.user()
        return caller

    async def user(self) -> UUID:
        """The session's user, as long as they are signed in."""
        known = self.owner if self.owner.int else None  # only the handshake is anybody's
        user = await self._runtime.threads.run(lambda: _user_of(self._session), owner=known)
        if user is None:
            raise Refusal(401, "not_signed_in", "Sign in again.")
        return user

    async def principal(self, metadata: Mapping[str, str]) -> Principal:
        """The user's principal in the project that the message or the address names."""
        user = await self.user()
        named = metadata.get(PROJECT_FIELD) or self._project
        if not named:
            raise Refusal(
                400, "missing_required_parameter", "Say which project is charged.", param=f"metadata.{PROJECT_FIELD}"
            )
        try:
            project = UUID(named)
        except ValueError:
            raise Refusal(400, "invalid_value", "That is no project's id.", param=f"metadata.{PROJECT_FIELD}") from None
        return await self._runtime.principals.by_session(user, project)


def _session_of(scope: Scope) -> str | None:
    # Django's parser: a malformed cookie of another site doesn't hide ours.
    return parse_cookie(header_of(scope, b"cookie") or "").get(settings.SESSION_COOKIE_NAME) or None


def _query_of(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=32)
    except ValueError:
        raise Refusal(400, "invalid_value", "The address has too many parameters.") from None


def _user_of(session: str) -> UUID | None:
    store = import_module(settings.SESSION_ENGINE).SessionStore(session)
    user = get_user(cast("Any", SimpleNamespace(session=store)))
    return user.pk if user.is_authenticated and user.is_active else None


def _is_same_origin(scope: Scope) -> bool:
    """Whether the page that opens the socket is ours: of the host that it connects to, or of an origin that is trusted.

    The proxy's X-Forwarded-Host counts only if the proxy is trusted, as for Django's forms.
    """
    origin = header_of(scope, b"origin") or ""
    place = _place_of(origin)
    if place is None or (settings.SESSION_COOKIE_SECURE and place[0] != "https"):
        return False  # a page sent without TLS may have been forged
    hosts = [header_of(scope, b"host")]
    if settings.USE_X_FORWARDED_HOST:
        hosts.append(header_of(scope, b"x-forwarded-host"))
    own = [f"{urlsplit(origin).scheme}://{host}" for host in hosts if host]
    return place in {_place_of(address) for address in [*own, *settings.CSRF_TRUSTED_ORIGINS]}


def _place_of(address: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of an address; None for text that isn't one."""
    try:
        parts = urlsplit(address)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # a port that is no number, a host that is none
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port and parts.scheme in _PORTS else None
