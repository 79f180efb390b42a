"""Responses that outlive their socket: their events go into a log, which this socket reads, or another one later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from base.http.asgi import Send, encode
from base.http.sse import data_of, event
from gateway.apis.responses.events import Event

_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
_ERROR = b"event: error\n"


def writer(send: Send) -> Callable[..., Awaitable[None]]:
    """Return what puts events into the log that `send` leads to; `is_last` with those that end the response."""
    is_begun = False

    async def write(events: Iterable[Event], *, is_last: bool = False) -> None:
        nonlocal is_begun
        if not is_begun:
            is_begun = True
            await send(_HEAD)
        data = b"".join(event(encode(told), told["type"]) for told in events)
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})

    return write


def message_of(told: bytes) -> bytes:
    """Return an event of the log as a websocket's message, in JSON."""
    data = data_of(told)
    return b'{"type":"error",' + data[1:] if told.startswith(_ERROR) else data
