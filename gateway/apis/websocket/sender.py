"""Sends events over one websocket."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from base.http.asgi import Send, encode
from gateway.errors.bodies import openai_error
from gateway.errors.refusal import Refusal


class EventSender:
    """Sends events while the socket is open; after `shut` it drops them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = True

    async def send(self, event: dict[str, Any], stream_id: str | None) -> None:
        """Send `event` on its stream."""
        if self._is_open:
            named = event if stream_id is None else {**event, "stream_id": stream_id}
            await self._pass_on({"type": "websocket.send", "text": encode(named).decode()})

    async def send_encoded(self, message: bytes, stream_id: str | None) -> None:
        """Send an event that is a JSON object already on its stream."""
        if self._is_open:
            named = message if stream_id is None else b'%b,"stream_id":%b}' % (message[:-1], encode(stream_id))
            await self._pass_on({"type": "websocket.send", "text": named.decode()})

    async def refuse(
        self, refusal: Refusal, request_id: UUID, *, stream_id: str | None = None, event_id: str | None = None
    ) -> None:
        """Send `refusal` as an error event; `event_id` is what the client called the event that was wrong."""
        error = openai_error(refusal, request_id)["error"]
        if event_id is not None:
            error["event_id"] = event_id
        if refusal.headers:
            error["headers"] = refusal.headers
        await self.send({"type": "error", "status": refusal.status, "error": error}, stream_id)

    async def close(self, code: int) -> None:
        """Close the socket."""
        if self._is_open:
            self._is_open = False
            await self._pass_on({"type": "websocket.close", "code": code})

    async def _pass_on(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:  # what ASGI servers raise once the client is gone; its disconnect is on its way to `receive`
            self._is_open = False

    def shut(self) -> None:
        """Drop events from now on: the client closed the socket."""
        self._is_open = False
