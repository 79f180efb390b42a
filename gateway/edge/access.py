"""Who is asking over HTTP: the bearer key of the request's headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gateway.edge.http import Scope, header_of, runtime_of
from gateway.errors.refusal import Refusal
from gateway.runtime.principal import Principal

INFERENCE = "inference"


def bearer_of(scope: Scope) -> str | None:
    """The bearer token of the ``authorization`` header, or None without one."""
    header = header_of(scope, b"authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def principal_of(scope: Scope) -> Principal:
    """The principal behind the request's key; 401 without a valid one, 403 when it may not use models."""
    token = bearer_of(scope)
    if not token:
        raise missing_key()
    principal = await runtime_of(scope).principals.by_key(token)
    require_scope(principal)
    note_caller(scope, tenant=principal.tenant, key=principal.api_key)
    return principal


def note_caller(
    scope: Mapping[str, Any], *, tenant: UUID | None = None, key: object = None, user: object = None
) -> None:
    """Let the access log's line of this request say who asked."""
    exchange = scope.get("exchange")
    if exchange is not None:
        caller = {"tenant": tenant, "key": key, "user": user}
        exchange.caller.update({name: str(value) for name, value in caller.items() if value is not None})


def require_scope(principal: Principal) -> None:
    """Refuse (403) a key whose scopes leave out the use of models."""
    if INFERENCE not in principal.scopes:
        raise Refusal(403, "missing_scope", f"This key lacks the scope '{INFERENCE}'.")


def missing_key() -> Refusal:
    """The 401 for a request without a key."""
    return Refusal(
        401,
        "missing_api_key",
        "Send your API key as 'Authorization: Bearer sk-sluice-…'.",
        headers={"www-authenticate": "Bearer"},
    )
