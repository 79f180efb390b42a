"""Paths that don't exist, refused in the API's own shape."""

from __future__ import annotations

from gateway.edge.http import Receive, Scope, Send
from gateway.errors.refusal import Refusal


async def unknown_endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for any other path below ``/v1/``."""
    raise Refusal(404, "unknown_endpoint", f"There is no endpoint {scope['method']} {scope['path'][:200]}.")


async def refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for a websocket on any other path."""
    raise Refusal(404, "unknown_endpoint", f"There is no websocket at {scope['path'][:200]}.")
