"""Helpers of ASGI endpoints: types, values of the scope, reading and sending bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import msgspec

from gateway.errors.refusal import Refusal
from gateway.runtime.caps import Cap

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime

Scope = MutableMapping[str, Any]
ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[str, str]

MOST_UPLOADED = 64 * 1024 * 1024

encode = msgspec.json.Encoder().encode


def _too_many_uploads() -> Refusal:
    text = f"{MOST_UPLOADED // 1024 // 1024} MiB of your requests are on their way already."
    return Refusal(429, "too_many_uploads", text, headers={"retry-after": "1", "connection": "close"})


# Bytes of bodies that are being received, by tenant or, before that is known, by address.
uploads: Cap[UUID | str] = Cap(MOST_UPLOADED, _too_many_uploads)


class ClientLeftError(Exception):
    """The client closed the connection before its request was read or answered."""


def runtime_of(scope: Scope) -> Runtime:
    """The runtime that lifespan opened; a 503 before that."""
    runtime = scope.get("state", {}).get("runtime")
    if runtime is None:
        raise Refusal(503, "starting", "The gateway is starting.", headers={"retry-after": "1"})
    return cast("Runtime", runtime)


def request_id_of(scope: Scope) -> UUID:
    """The id that `guarded` gave this request."""
    return cast("UUID", scope["request_id"])


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header called `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            return cast("bytes", value).decode("latin-1")
    return None


def require_method(scope: Scope, *methods: str) -> None:
    """Refuse other methods (405), saying which there are."""
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise Refusal(
            405,
            "method_not_allowed",
            f"{scope['method']} is not allowed here: use {allowed}.",
            headers={"allow": allowed},
        )


async def read_body(scope: Scope, receive: Receive, owner: UUID) -> bytes:
    """Return the whole body; refuse one that is compressed (415), or one too many (429) that `owner`, a tenant, is
    sending at once. `bounded` limits its size and time.
    """
    if (header_of(scope, b"content-encoding") or "identity").lower() != "identity":
        raise Refusal(415, "unsupported_content_encoding", "Send the body without compression.")
    chunks: list[bytes] = []
    with uploads.share(owner) as take:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            take(len(chunks[-1]))


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
