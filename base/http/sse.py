"""Server-sent events: head, events, keep-alive comments, end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from base.http.asgi import Headers, Send, raw_headers

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
