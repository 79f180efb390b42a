"""HTTP below every API: ASGI's types and messages, server-sent events, a client that leaves, and an opener of our own
addresses that asks no proxy of the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Protocol, Self, cast
from urllib.request import BaseHandler, OpenerDirector, ProxyHandler, build_opener  # noqa: TID251 - the only one

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


class Connection(Protocol):
    """The state of a request's connection, as `scope["connection"]`; set by our own server alone."""

    is_lost: bool
    has_message: bool
    on_lost: Callable[[], None] | None
    """Called once when the connection ends."""


class watching:  # noqa: N801 - reads as a verb: `async with watching(scope, receive) as client`
    """While open, notices that the client disconnects: the block is then cancelled and ends with ClientLeftError.

    After `stops(work)` a disconnect, or an error in the block, calls `work` instead, and the block goes on to its end.
    A server also says "disconnect" after a complete answer, so call `stop()` before sending the final body.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._connection: Connection | None = scope.get("connection")
        self._receive = receive
        self._work: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None
        self._block: asyncio.Task[object] | None = None
        self._is_cancelled = False
        self.left = False

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        if self._connection is None:
            self._task = asyncio.create_task(self._watch())
        elif self._connection.is_lost:
            self._leave()
        else:
            self._connection.on_lost = self._leave
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._work is not None:
            self._work()  # the client won't get the rest of the answer
        self.stop()
        if self._is_cancelled and self._block is not None and not self._block.uncancel():
            raise ClientLeftError from error

    def stops(self, work: Callable[[], object]) -> None:
        """Have a disconnect call `work` from now on, instead of cancelling the block; may be called again."""
        self._work = work

    def stop(self) -> None:
        """Stop watching: a later "disconnect" only means that the answer is complete."""
        if self._connection is not None:
            self._connection.on_lost = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # it does nothing more, so nobody need wait for it
            task.add_done_callback(_retrieve_error)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.left = True
        if self._work is not None:
            self._work()
        elif self._block is not None:
            self._is_cancelled = self._block.cancel()


def _retrieve_error(done: asyncio.Task[None]) -> None:
    """Mark the error as retrieved, so that asyncio doesn't log it: failing to watch must not fail the answer."""
    if not done.cancelled():
        done.exception()


def direct_opener(*handlers: BaseHandler) -> OpenerDirector:
    """Return an opener that uses no proxy, with further `handlers`."""
    return build_opener(ProxyHandler({}), *handlers)


open_directly = direct_opener().open


PING_SECONDS = 10.0
_PING = b": ping\n\n"
_HEAD = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """An open stream of events. After `PING_SECONDS` without one it sends a comment, so that proxies keep it open.

    If the block raises, nothing more is sent and the server cuts the connection, which clients can tell from an end.
    """

    HEADERS = frozenset(name.decode() for name, _ in _HEAD)
    """The names of those that every stream has."""

    def __init__(self, send: Send, headers: Headers, *, ping_seconds: float | None = None) -> None:
        self._send = send
        self._headers = headers
        self._ping_seconds = PING_SECONDS if ping_seconds is None else ping_seconds
        self._loop = asyncio.get_running_loop()
        self._quiet_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_HEAD, *raw_headers(self._headers)]}
        )
        self._quiet_since = self._loop.time()
        self._look_again(self._ping_seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_pinging()

    async def write(self, data: bytes) -> None:
        """Send whole events."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._quiet_since = self._loop.time()

    async def finish(self, data: bytes = b"") -> None:
        """Send the last events and end the answer; nothing may follow."""
        await self._stop_pinging()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def _look_again(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Send a comment if nothing was sent for `PING_SECONDS`. A timer costs less than a task, and few streams are
        silent so long.
        """
        wait = self._quiet_since + self._ping_seconds - self._loop.time()
        if wait > 0:
            self._look_again(wait)
        else:
            self._pinging = self._loop.create_task(self._ping())

    async def _ping(self) -> None:
        await self.write(_PING)
        if self._pinging is not None:
            self._look_again(self._ping_seconds)

    async def _stop_pinging(self) -> None:
        pinging, self._pinging = self._pinging, None
        if self._timer is not None:
            self._timer.cancel()
        if pinging is not None:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)


def event(data: bytes, name: str = "") -> bytes:
    """One event, with its `name` where the API has them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data


def data_of(told: bytes) -> bytes:
    """Return the data of one event of ours."""
    return told.partition(b"data: ")[2].rstrip(b"\n")
