"""A line of a batch as a request in this gateway: guarded, kept and charged as one that came over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from django.conf import settings

from base.http import ASGIMessage, Receive, Scope, Send, send_json, watching
from gateway.batches.claims import Task
from gateway.batches.outcomes import OVER, Reply
from gateway.durable.answers import Claim
from gateway.durable.replays import DurableRequest
from gateway.durable.room import LINE
from gateway.errors.refusal import Refusal
from gateway.http.access import note_principal, require_use
from gateway.http.durable import digest_of, write_answer
from gateway.http.endpoint import Endpoint
from gateway.http.guard import guarded
from gateway.http.request import read_body, request_id_of
from gateway.http.routes import Route
from gateway.runtime.runtime import Runtime


class Lines:
    """Runs lines at the `endpoints` that their batches name."""

    def __init__(self, runtime: Runtime, endpoints: Mapping[str, Endpoint]) -> None:
        self._runtime = runtime
        self._endpoints = endpoints
        self._application = guarded(self._answer)

    async def ask(self, task: Task, is_over: bool) -> Reply:
        """Return the line's answer: once it ran it isn't run again, and when its batch is over it is not run either."""
        assert isinstance(task.body, bytes), "the line was read"
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": task.batch.endpoint,
            "query_string": b"",
            "headers": [],
            "state": {"runtime": self._runtime},
            "line": task,
            "is_over": is_over,
        }
        connection = _Connection(task.body)
        await self._application(scope, connection.receive, connection.send)
        return connection.reply()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        task: Task = scope["line"]
        one = self._endpoints[scope["path"]]
        scope["exchange"].route = Route(one.shown_path, one.scope, one.error_body)
        body = await read_body(scope, receive, task.batch.tenant_id)
        found = await self._runtime.principals.by_id(task.batch.api_key)
        principal = found.for_batch(task.batch.id, settings.SLUICE_BATCH_CONCURRENCY)
        note_principal(scope, principal)
        require_use(principal, one.scope, "")
        # Whoever took it over asks for its answer, however late and whatever its key is for by then: it is paid for.
        claim = Claim(principal.tenant, f"{LINE}{task.line.id.hex}", digest_of(scope, body))
        endpoint = _not_run if scope["is_over"] else partial(one.answer, principal)
        async with watching(scope, receive) as client:
            request = DurableRequest(claim, request_id_of(scope), endpoint, scope, body, grace=None)
            answer = await self._runtime.replays.answer(request)
            await write_answer(answer, scope, principal, client, send)


async def _not_run(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in the place of a line of a batch that is over: it is kept, so that the line can't run later either."""
    refusal = Refusal(410, OVER, "The batch ended before this line ran.", should_retry=False)
    await send_json(send, refusal.status, scope["exchange"].route.error_body(refusal, request_id_of(scope)))


class _Connection:
    """Gives a body, and gathers the answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []

    async def receive(self) -> ASGIMessage:
        """Return the body, and then nothing for ever: nobody leaves."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: ASGIMessage) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
        else:
            self._pieces.append(message.get("body", b""))

    def reply(self) -> Reply:
        """The answer."""
        wait = self._headers.get(b"retry-after", b"").decode()
        identifier = self._headers[b"x-request-id"].decode()
        return Reply(self._status, identifier, float(wait) if wait.isdigit() else None, b"".join(self._pieces))
