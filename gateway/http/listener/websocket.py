"""One websocket, bounded."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from base.http import ASGIMessage
from gateway.http.listener.bounds import Listener


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's websocket, whose peer has to read what it is sent and is not an error when it is refused."""

    def __init__(self, *args: Any, listener: Listener, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_seconds = listener.bounds.write_seconds
        self._stalled: asyncio.TimerHandle | None = None
        self._is_over = False
        self.place: ExitStack | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._writes_again()
        if self.place is not None:
            self.place.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_soon()
        if not self.read_paused:
            self.transport.pause_reading()  # pings are answered, and the answers would pile up

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._is_over:
            self._writes_again()
        if not self.read_paused:
            self.transport.resume_reading()

    def shutdown(self) -> None:
        """Let the application say goodbye: it was told that the server ends, and closes the socket with a reason."""
        if not self.handshake_complete:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """End a connection that answers no ping at once: it reads nothing more either."""
        super().keepalive_timeout()
        self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._is_over = True
        if not self.disconnected:
            self._abort_soon()

    async def send(self, message: ASGIMessage) -> None:  # type: ignore[override] # uvicorn's own unions
        await super().send(cast("Any", message))
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # by an answer: uvicorn would log that none came

    def _abort_soon(self) -> None:
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._write_seconds, self.transport.abort)

    def _writes_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
