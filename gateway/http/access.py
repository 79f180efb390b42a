"""The caller of a request over HTTP, by its bearer key; and what is recorded of refused requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from base.http import Scope, header_of
from gateway.errors.refusal import Refusal
from gateway.http.bounds import client_network
from gateway.http.request import runtime_of
from gateway.runtime.principals import Principal
from gateway.runtime.refusals import Sender
from gateway.runtime.runtime import Runtime
from routing.hook import OwnTerms
from tenancy.services.networks import is_within

AUTO = "auto"


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
    note_principal(scope, principal)
    require_use(principal, needed_scope(scope), address_of(scope))
    return principal


async def note_sender(scope: Scope) -> None:
    """Note whose key the request has, if any: it is refused whoever sent it, and found by its tenant afterwards."""
    token, runtime = bearer_of(scope), scope.get("state", {}).get("runtime")
    if token and runtime is not None:
        with suppress(Refusal):
            note_principal(scope, await runtime.principals.by_key(token, client_network(address_of(scope))))


def note_principal(scope: Scope, principal: Principal) -> None:
    """Note who asks, for the log and in case the request is refused."""
    note_caller(scope, tenant=principal.tenant, key=principal.api_key)
    scope["exchange"].project = principal.project


def note_caller(
    scope: Mapping[str, Any], *, tenant: UUID | None = None, key: object = None, user: object = None
) -> None:
    """Put the caller into this request's lines of the log."""
    exchange = scope.get("exchange")
    if exchange is not None:
        caller = {"tenant": tenant, "key": key, "user": user}
        exchange.caller.update({name: value for name, value in caller.items() if value is not None})


def note_model(scope: Mapping[str, Any], name: str) -> None:
    """Note the requested model, in case the request is refused."""
    exchange = scope.get("exchange")
    if exchange is not None:
        exchange.model = name


def note_refusal(
    runtime: Runtime, refusal: Refusal, request_id: UUID, sender: Sender | None, *, endpoint: str, asked: str = ""
) -> None:
    """Keep a request that was refused, or that failed with nothing run, where its tenant is known; `asked` is the model
    as the client wrote it.
    """
    if refusal.tenant is not None:
        sender = Sender(refusal.tenant, api_key=refusal.api_key)
    if sender is None or refusal.has_record:
        return
    # Counts are by models that there are: names that clients make up would be as many rows. So that nobody learns of
    # them from the counts, other tenants' own aren't there either.
    entry = runtime.catalogue.snapshot.catalogue.models.get(asked)
    exists = asked == AUTO or (entry is not None and not entry.is_hidden_from(OwnTerms(tenant=sender.tenant)))
    model = asked if exists else ""
    runtime.requests.refusals.note(refusal, request_id, sender, endpoint=endpoint, asked=asked, model=model)


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
