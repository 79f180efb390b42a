"""The outermost ASGI wrapper: request ids, errors for any exception, the access log, request counts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from base.http import (
    Application,
    ASGIMessage,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    encode,
    header_of,
    raw_headers,
    send_json,
)
from base.ids import uuid7
from gateway.errors.faults import refusal_of
from gateway.errors.refusal import ANTHROPIC, ErrorBody, Refusal, anthropic_error, internal_error
from gateway.http.access import address_of, note_refusal
from gateway.http.bounds import Patience, client_network, size_read
from gateway.http.request import metrics_of
from gateway.http.routes import NOWHERE, Route
from gateway.logs import request_bound
from gateway.runtime import tracing
from gateway.runtime.refusals import Sender


async def deny(send: Send, refusal: Refusal, error: object) -> None:
    """Answer the handshake with `refusal`, whose body is `error` as over HTTP."""
    body = encode(error)
    await send(
        {
            "type": "websocket.http.response.start",
            "status": refusal.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *raw_headers(refusal.headers),
            ],
        }
    )
    await send({"type": "websocket.http.response.body", "body": body})


if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = structlog.get_logger("gateway.access")

_QUIET = frozenset({"/health", "/healthz", "/readyz", "/metrics"})


def guarded(application: Application) -> Application:
    """Return `application` with a request id in its scope and answers, and no exception that reaches the server.

    A Refusal becomes its answer; anything else the 500, if no answer has begun, else a cut connection. A caller's own
    faults are paced, by number and by bytes: nothing pays for them, and a loop of them would take the event loop from
    everybody.
    """
    faults: Patience[object] = Patience()

    async def application_with_guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await application(scope, receive, send)
            return
        request_id = uuid7()
        exchange = _Exchange(scope, send, request_id)
        with (
            tracing.request(scope["headers"], exchange.is_told) as exchange.span,
            request_bound(exchange.id_text) as exchange.caller,
        ):
            if exchange.span is not None:
                exchange.caller["trace_id"] = tracing.trace_id_of(exchange.span)
            try:
                given = {**scope, "request_id": request_id, "exchange": exchange}
                refusal = await _refused(application, given, receive, exchange)
                if refusal is not None:
                    is_callers = 400 <= refusal.status < 500
                    if is_callers and not await faults.wait(exchange.owner, size_read(given)):
                        refusal.headers = {**refusal.headers, "connection": "close"}
                    await exchange.refuse(refusal)
            except asyncio.CancelledError:
                exchange.status = exchange.status or 499
                raise
            finally:
                exchange.report()

    return application_with_guard


async def _refused(application: Application, scope: Scope, receive: Receive, exchange: _Exchange) -> Refusal | None:
    """Have the request answered; return what is to be answered instead, without the traceback that keeps its body."""
    try:
        await application(scope, receive, exchange.send)
    except ClientLeftError:
        exchange.status = 499
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            log.exception("unhandled", path=scope["path"])
        if exchange.begun:
            raise
        refusal = refusal or internal_error()
        refusal.__context__ = refusal.__cause__ = None
        return refusal.with_traceback(None)
    return None


class _Exchange:
    """One request, with what the log and the counts need."""

    def __init__(self, scope: Scope, send: Send, request_id: UUID) -> None:
        self._scope = scope
        self._send = send
        self._id = request_id
        self.id_text = str(request_id)
        self._started = time.monotonic()
        self.status = 0
        self.route: Route = NOWHERE
        self.caller: dict[str, Any] = {}  # tenant, key, user: set by `note_caller`, and in each line of the log
        self.project: UUID | None = None
        self.model = ""  # as the client wrote it
        self.span: Span | None = None

    @property
    def begun(self) -> bool:
        """Whether an answer's head (or a handshake's end) has been sent."""
        return bool(self.status)

    def is_told(self) -> bool:
        """Whether the log and the traces tell of it: not of probes, which come all the time."""
        return self.route.name not in _QUIET

    @property
    def owner(self) -> object:
        """Whose request it is: the tenant's, or where nobody is known the network's that it came from."""
        return self.caller.get("tenant") or client_network(address_of(self._scope))

    @property
    def sender(self) -> Sender | None:
        """The caller; None where the tenant isn't known."""
        known = self.caller
        if known.get("tenant") is None:
            return None
        return Sender(known["tenant"], self.project, known.get("key"), known.get("user"))

    @property
    def _error_body(self) -> ErrorBody:
        """The form of errors: that of the route's API, or Anthropic's for its clients at any route."""
        return anthropic_error if header_of(self._scope, ANTHROPIC) is not None else self.route.error_body

    @property
    def _runtime(self) -> Any:
        return self._scope.get("state", {}).get("runtime")

    async def send(self, message: ASGIMessage) -> None:
        kind = message["type"]
        if kind in {"http.response.start", "websocket.http.response.start", "websocket.accept"}:
            self.status = message.get("status", 101)
            identifier = self.id_text.encode()
            head = [*message.get("headers", ()), (b"x-request-id", identifier)]
            if self._error_body is anthropic_error:
                head.append((b"request-id", identifier))  # by which that API's clients know it
            message = {**message, "headers": head}
        elif kind == "websocket.close" and not self.status:
            self.status = 403  # what uvicorn answers to a close before accept
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        if (runtime := self._runtime) is not None:
            note_refusal(runtime, refusal, self._id, self.sender, endpoint=self.route.name, asked=self.model)
        if (metrics := metrics_of(self._scope)) is not None:
            metrics.refused(self.route.name, refusal.status, refusal.code)
        body = self._error_body(refusal, self._id)
        try:
            encode(body)
            raw_headers(refusal.headers)
        except Exception:  # whatever is in it, its client gets an answer: an engine or a row may say anything
            log.exception("refusal_not_encoded", code=refusal.code)
            refusal = refusal.encodable()
            body = self._error_body(refusal, self._id)
        if self._scope["type"] == "websocket":
            await deny(self.send, refusal, body)
        else:
            await send_json(self.send, refusal.status, body, refusal.headers)

    def report(self) -> None:
        """Log the exchange and count it under its route's name (never under a path that the client made up)."""
        path = self._scope["path"]
        if (metrics := metrics_of(self._scope)) is not None:
            metrics.answered(self.route.name, self.status)
        method = self._scope.get("method", "WEBSOCKET")
        if self.span is not None:
            self._describe(self.span, method)
        if self.is_told():
            log.info(
                "answered",
                method=method,
                path=path,
                status=self.status,
                ms=round((time.monotonic() - self._started) * 1000, 1),
                address=(self._scope.get("client") or ("",))[0],
            )

    def _describe(self, span: Span, method: str) -> None:
        span.update_name(f"{method} {self.route.name}")
        named = {f"sluice.{name}": str(self.caller[name]) for name in ("request_id", "tenant") if name in self.caller}
        status = {"http.response.status_code": self.status, "http.request.method": method}
        tracing.describe(span, {"http.route": self.route.name, **status, **named})
        if self.status >= 500:
            tracing.failed(span)
