"""A client that calls an ASGI application in process, and can leave whenever it likes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.apis.world import KEY

Application = Any


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str, Any]]:
        """The server-sent events as (name, data); the end mark stays text."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in lines:
                data = lines["data"]
                found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
        return found


class Exchange:
    """One HTTP request in flight."""

    def __init__(self, application, method, path, *, body=b"", headers=None, key=KEY, address="127.0.0.1") -> None:
        self.answer = Answer()
        self.changed = asyncio.Condition()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        if body is not None:
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            self._incoming.put_nowait({"type": "http.request", "body": payload, "more_body": False})
        given = {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": (address, 1),
            "server": ("127.0.0.1", 8000),
        }
        self.task = asyncio.ensure_future(application(scope, self._receive, self._send))

    def feed(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece of the body."""
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def finished(self) -> Answer:
        await self.task
        return self.answer

    async def body_has(self, part: bytes) -> None:
        """Return when the answer's body so far has `part`."""
        async with self.changed:
            await self.changed.wait_for(lambda: part in self.answer.body)

    async def _receive(self) -> dict[str, Any]:
        if self.answer.is_complete:
            return {"type": "http.disconnect"}  # what uvicorn says after a complete answer
        return await self._incoming.get()

    async def _send(self, message: dict[str, Any]) -> None:
        assert not self.answer.is_complete, "something was sent after the end"
        async with self.changed:
            if message["type"] == "http.response.start":
                assert not self.answer.status, "a second head"
                self.answer.status = message["status"]
                for name, value in message["headers"]:
                    self.answer.headers[name.decode().lower()] = value.decode()
            else:
                self.answer.body += message.get("body", b"")
                self.answer.is_complete = not message.get("more_body", False)
                if self.answer.is_complete:
                    self._incoming.put_nowait({"type": "http.disconnect"})
            self.changed.notify_all()
        if self.answer.is_complete:
            for _ in range(5):  # time for whoever still listens to take the end for a client that left
                await asyncio.sleep(0)


async def ask(application: Application, path: str, body: object = None, *, method: str = "", **options) -> Answer:
    """The answer to one request: a POST when there is a body, else a GET."""
    chosen = method or ("GET" if body is None else "POST")
    return await Exchange(application, chosen, path, body=b"" if body is None else body, **options).finished()


def assert_error(answer: Answer, status: int, code: str, *, param: str | None = None) -> dict[str, Any]:
    """The answer is the API's error with that status and code (and field); return the error object."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["code"] == code, error
    if param is not None:
        assert error["param"] == param, error
    assert error["message"]
    assert error["type"]
    assert error["request_id"] == answer.headers["x-request-id"]
    return error
