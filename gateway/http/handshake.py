"""Refusing a websocket's handshake with an HTTP status and body."""

from __future__ import annotations

from base.http.asgi import Send, encode, raw_headers
from gateway.errors.refusal import Refusal


async def deny(send: Send, refusal: Refusal, error: object) -> None:
    """Answer the handshake with `refusal`, whose body is `error` as over HTTP."""
    body = encode(error)
    await send(
        {
            "type": "websocket.http.response.start",
            "status": refusal.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *raw_headers(refusal.headers),
            ],
        }
    )
    await send({"type": "websocket.http.response.body", "body": body})
