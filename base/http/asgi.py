"""ASGI: its types, what a scope says, and answers as its messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, cast

import msgspec

Scope = MutableMapping[str, Any]
ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[str, str]

encode = msgspec.json.Encoder().encode


class ClientLeftError(Exception):
    """The client closed the connection before its request was read or answered."""


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header called `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            return cast("bytes", value).decode("latin-1")
    return None


async def send_json(send: Send, status: int, body: object, headers: Headers | None = None) -> None:
    """Send `body` as the whole answer."""
    await send_bytes(send, status, encode(body), "application/json", headers)


async def send_bytes(send: Send, status: int, body: bytes, content_type: str, headers: Headers | None = None) -> None:
    """Send `body` as the whole answer."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type.encode()),
                (b"content-length", str(len(body)).encode()),
                *raw_headers(headers or {}),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


def raw_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI wants them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
