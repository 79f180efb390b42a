"""A client that opens a websocket to an ASGI application in process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.gateway.apis.world import KEY


class Socket:
    """One websocket, from its handshake to its end."""

    def __init__(self, application, path="/v1/responses", *, key=KEY, headers=None) -> None:
        given = {"host": "127.0.0.1:8000", **({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        path, _, query = path.partition("?")
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        self.headers: dict[str, str] = {}
        self.task = asyncio.ensure_future(application(scope, self._incoming.get, self._outgoing.put))

    async def opened(self) -> Socket:
        """The socket after an accepted handshake."""
        message = await self._next()
        assert message["type"] == "websocket.accept", message
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        return self

    async def refused(self, status: int, code: str) -> dict[str, Any]:
        """The error with which the handshake was answered."""
        head = await self._next()
        assert (head["type"], head["status"]) == ("websocket.http.response.start", status)
        body = await self._next()
        await self.task
        error = json.loads(body["body"])["error"]
        assert error["code"] == code
        return error

    def send(self, event: object) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        self._incoming.put_nowait({"type": "websocket.receive", "text": text})

    async def receive(self) -> dict[str, Any]:
        """The next event."""
        message = await self._next()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def until(self, *kinds: str) -> list[dict[str, Any]]:
        """All events up to the first of one of these types."""
        events = [await self.receive()]
        while events[-1]["type"] not in kinds:
            events.append(await self.receive())
        return events

    async def closed(self) -> int:
        """The code with which the server closed."""
        message = await self._next()
        assert message["type"] == "websocket.close", message
        await self.leave()
        return message["code"]

    async def leave(self) -> None:
        """Close, and wait until the server has noticed."""
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task

    @property
    def is_quiet(self) -> bool:
        """Whether nothing more has arrived."""
        return self._outgoing.empty()

    async def _next(self) -> dict[str, Any]:
        getter = asyncio.ensure_future(self._outgoing.get())
        await asyncio.wait({getter, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if not getter.done():
            getter.cancel()
            self.task.result()
            raise AssertionError("the server ended without another message")
        return getter.result()
