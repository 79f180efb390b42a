"""The caller of a request over HTTP, by its bearer key; and what is recorded of refused requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from base.http import Scope, header_of
from gateway.errors.refusal import Refusal
from gateway.http.bounds import client_network
from gateway.http.request import runtime_of
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime
from routing.hook import OwnTerms
from tenancy.services.networks import is_within

AUTO = "auto"

_KEPT = frozenset({401, 402, 403, 429})


def bearer_of(scope: Scope) -> str | None:
    """The bearer token of the ``authorization`` header, else the ``x-api-key`` header; None without both."""
    header = header_of(scope, b"authorization")
    if header is None:
        return header_of(scope, b"x-api-key")
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def principal_of(scope: Scope) -> Principal:
    """The principal behind the request's key; 401 without a valid one, 403 when it lacks what the route needs."""
    token = bearer_of(scope)
    if not token:
        raise missing_key()
    principal = await runtime_of(scope).principals.by_key(token, client_network(address_of(scope)))
    note_caller(scope, tenant=principal.tenant, key=principal.api_key)
    require_use(principal, needed_scope(scope), address_of(scope))
    return principal


def note_caller(
    scope: Mapping[str, Any], *, tenant: UUID | None = None, key: object = None, user: object = None
) -> None:
    """Put the caller into this request's lines of the log."""
    exchange = scope.get("exchange")
    if exchange is not None:
        caller = {"tenant": tenant, "key": key, "user": user}
        exchange.caller.update({name: value for name, value in caller.items() if value is not None})


def note_model(scope: Mapping[str, Any], name: str) -> None:
    """Note the requested model, for the count of refusals."""
    exchange = scope.get("exchange")
    if exchange is not None:
        exchange.model = name


def note_refusal(
    runtime: Runtime, refusal: Refusal, request_id: UUID, *, tenant: UUID | None, api_key: UUID | None, model: str
) -> None:
    """Count a request that the gateway refused, or that failed with nothing run, where its tenant is known.

    Errors of the request itself (400, 404 and so on) aren't counted.
    """
    tenant, api_key = refusal.tenant or tenant, refusal.api_key or api_key
    if tenant is None or refusal.has_record or not (refusal.status in _KEPT or refusal.status >= 500):
        return
    # Names that clients make up are not stored, and so that nobody learns of them neither are other tenants' own.
    entry = runtime.catalogue.snapshot.catalogue.models.get(model)
    known = model == AUTO or (entry is not None and not entry.is_hidden_from(OwnTerms(tenant=tenant)))
    runtime.requests.refusals.note(refusal, request_id, tenant=tenant, api_key=api_key, model=model if known else "")


def needed_scope(scope: Scope) -> str:
    """The scope that a key needs for this request or websocket, as its route says."""
    needed: str = scope["exchange"].route.scope
    assert needed, "a route whose endpoint asks for a key says which scope that needs"
    return needed


def address_of(scope: Scope) -> str:
    """The client's address, as the listener knows it through the proxies that it trusts; "" where it has none."""
    client = scope.get("client")
    return client[0] if client else ""


def require_use(principal: Principal, needed: str, address: str) -> None:
    """Raise a 403 Refusal for a key without the scope `needed`, or that may not be used from there."""
    if principal.networks and not is_within(address, principal.networks):
        raise Refusal(
            403, "address_not_allowed", f"This key may not be used from your address, {address or 'unknown'}."
        )
    if needed not in principal.scopes:
        raise Refusal(403, "insufficient_scope", f"This key lacks the scope '{needed}'.")


def missing_key() -> Refusal:
    """The 401 for a request without a key."""
    return Refusal(
        401,
        "missing_api_key",
        "Send your API key as 'Authorization: Bearer sk-sluice-…' or 'x-api-key: sk-sluice-…'.",
        headers={"www-authenticate": "Bearer"},
    )
