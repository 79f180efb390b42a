"""Responses that outlive their socket: their events go into a log, which this socket reads, or another one later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from gateway.edge.kept import log_of
from gateway.edge.response_events import Event
from gateway.http.asgi import Send, encode
from gateway.http.sse import event
from gateway.replay.log import EventLog
from gateway.replay.replays import Answer

_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
_DATA = b"data: "
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


@contextmanager
def reading(answer: Answer) -> Iterator[EventLog]:
    """Yield the log of an answer that is made, or was, to one more reader."""
    if answer.keeper is not None:
        with answer.keeper.reading() as log:
            yield log
    else:
        assert answer.stored is not None, "an answer is stored or being made"
        yield log_of(answer.stored, answer.first)


def message_of(told: bytes) -> bytes:
    """Return an event of the log as a websocket's message, in JSON."""
    data = told.partition(_DATA)[2].rstrip(b"\n")
    return b'{"type":"error",' + data[1:] if told.startswith(_ERROR) else data
