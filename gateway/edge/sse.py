"""Server-sent events: the head, events, a comment in silence, the end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from gateway.edge.http import Headers, Send, raw_headers

PING_SECONDS = 10.0
_PING = b": ping\n\n"
_HEAD = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """An open stream of events. After `PING_SECONDS` without one it sends a comment, so that proxies keep it open.

    Leaving it by an error sends no more: the server then cuts the connection, which a client can tell from an end.
    """

    def __init__(self, send: Send, headers: Headers, *, ping_seconds: float | None = None) -> None:
        self._send = send
        self._headers = headers
        self._ping_seconds = PING_SECONDS if ping_seconds is None else ping_seconds
        self._quiet_since = 0.0
        self._pinger: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_HEAD, *raw_headers(self._headers)]}
        )
        self._quiet_since = asyncio.get_running_loop().time()
        self._pinger = asyncio.create_task(self._ping())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_pinging()

    async def write(self, data: bytes) -> None:
        """Send whole events."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._quiet_since = asyncio.get_running_loop().time()

    async def finish(self, data: bytes = b"") -> None:
        """Send the last events and end the answer; nothing may follow."""
        await self._stop_pinging()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait = self._quiet_since + self._ping_seconds - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            else:
                await self.write(_PING)

    async def _stop_pinging(self) -> None:
        pinger, self._pinger = self._pinger, None
        if pinger is not None:
            pinger.cancel()
            await asyncio.gather(pinger, return_exceptions=True)


def event(data: bytes, name: str = "") -> bytes:
    """One event, with its `name` where the API has them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data
