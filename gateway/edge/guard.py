"""The outermost wrapper: an id for each request, the API's own 500 for any exception, the access log, the count."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import structlog

from billing.ids import uuid7
from gateway.edge.handshake import deny
from gateway.edge.http import Application, ASGIMessage, ClientLeftError, Receive, Scope, Send, raw_headers, send_json
from gateway.errors.refusal import Refusal, internal_error
from gateway.logs import request_bound

log = structlog.get_logger("gateway.access")

_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


def guarded(application: Application) -> Application:
    """Return `application` with a request id in its scope and answers, and no exception that reaches the server.

    A Refusal becomes its answer; anything else the 500, if no answer has begun, else a cut connection.
    """

    async def application_with_guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await application(scope, receive, send)
            return
        request_id = uuid7()
        exchange = _Exchange(scope, send, request_id)
        with request_bound(request_id):
            try:
                await application({**scope, "request_id": request_id}, receive, exchange.send)
            except ClientLeftError:
                exchange.status = exchange.status or 499
            except Refusal as refusal:
                await exchange.refuse(refusal)
            except asyncio.CancelledError:
                exchange.status = exchange.status or 499
                raise
            except Exception:
                log.exception("unhandled", path=scope["path"])
                if exchange.begun:
                    raise
                await exchange.refuse(internal_error())
            finally:
                exchange.report()

    return application_with_guard


class _Exchange:
    """One request and what became of it."""

    def __init__(self, scope: Scope, send: Send, request_id: UUID) -> None:
        self._scope = scope
        self._send = send
        self._id = request_id
        self._started = time.monotonic()
        self.status = 0

    @property
    def begun(self) -> bool:
        """Whether an answer's head (or a handshake's end) has been sent."""
        return bool(self.status)

    async def send(self, message: ASGIMessage) -> None:
        kind = message["type"]
        if kind in {"http.response.start", "websocket.http.response.start", "websocket.accept"}:
            self.status = message.get("status", 101)
            head = [*message.get("headers", ()), *raw_headers({"x-request-id": str(self._id)})]
            message = {**message, "headers": head}
        elif kind == "websocket.close" and not self.status:
            self.status = 403  # what a server makes of a close before accept
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        if self.begun:
            raise refusal
        if self._scope["type"] == "websocket":
            await deny(self.send, refusal, self._id)
        else:
            await send_json(self.send, refusal.status, refusal.body(str(self._id)), refusal.headers)

    def report(self) -> None:
        """Log the exchange and count it under its route (never under a path that the client made up)."""
        path = self._scope["path"]
        runtime = self._scope.get("state", {}).get("runtime")
        if runtime is not None:
            runtime.metrics.answered(endpoint_name(path), self.status)
        if path not in _QUIET:
            log.info(
                "answered",
                method=self._scope.get("method", "WEBSOCKET"),
                path=path,
                status=self.status,
                ms=round((time.monotonic() - self._started) * 1000, 1),
            )


_ENDPOINTS = frozenset(
    {"/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/healthz", "/readyz", "/metrics"}
)


def endpoint_name(path: str) -> str:
    """The route that `path` belongs to, one of a few."""
    if path in _ENDPOINTS:
        return path
    for prefix in ("/v1/models/", "/v1/usage/"):
        if path.startswith(prefix):
            return prefix + "{id}"
    return "/v1/*" if path.startswith("/v1/") else "control"
