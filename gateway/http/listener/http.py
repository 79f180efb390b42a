"""One HTTP connection, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from base.http import Application, ASGIMessage, Receive, Scope, Send, encode
from base.ids import uuid7
from gateway.errors.refusal import Refusal, openai_error
from gateway.http.listener.bounds import Listener
from gateway.http.listener.transport import LingeringTransport
from gateway.http.listener.websocket import BoundedWebSocket
from gateway.runtime.metrics import Metrics

MOST_PIPELINED = 8  # requests that wait for the answer to an earlier one on the same connection
LINGER_SECONDS = 2.0  # how long a refused client's data is read and dropped, so that it gets the answer and not a reset
LINGER_BYTES = 256 * 1024
WIRE_OVERHEAD = 64 * 1024  # of a chunked body, beside as many bytes as the body itself may have

_END = b"\r\n\r\n"
_CLOSE = {"connection": "close"}

log = structlog.get_logger(__name__)


class BoundedHTTP(HttpToolsProtocol):
    """uvicorn's protocol on httptools, with bounds.

    A deadline runs while a head is incomplete, and for what is left of a body whose answer is already complete.
    """

    def __init__(self, *args: Any, listener: Listener, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listener = listener
        self._bounds = listener.bounds
        self._place: ExitStack | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.is_lost = False
        self.on_lost: Callable[[], None] | None = None
        self._is_in_head = False
        self._is_in_body = False
        self._is_deaf = False  # what comes in is dropped
        self._is_lingering = False
        self._head_size = 0
        self._head_tail = b""
        self._wire_size = 0  # of the body, framing included
        self._idle_size = 0  # bytes in which no byte of the body was: extensions of chunks, trailers
        self._discarded = 0

    # -- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(cast("asyncio.Transport", LingeringTransport(transport, self)))
        address = self.client[0] if self.client else None
        try:
            self._place = self._listener.enter(address)
        except Refusal as refusal:
            self._listener.turned_away(address, refusal.code)
            self._answer(refusal)
            transport.close()  # lingering would keep what there is too much of
        else:
            self._listener.waits(self)
            self._expect_head()

    def give_way(self) -> None:
        """Close the connection, which has no request, for one that another client wants."""
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        """Give the connection's place back."""
        self._listener.has_request(self)
        if self._place is not None:
            self._place.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()
        self._stop_deadline()
        self._writes_again()
        self._leave()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection and its place to the websocket's protocol, whose parser takes less than a head may be."""
        self._stop_deadline()
        lines = [len(name) + len(value) + 4 for name, value in self.headers]
        if self._is_running:
            self.transport.abort()  # an upgrade behind a request that still runs
        elif len(lines) > MAX_NUM_HEADERS or max(lines) > MAX_LINE_LENGTH or len(self.url) + 32 > MAX_LINE_LENGTH:
            self._refuse(_head_too_large(MAX_LINE_LENGTH))
        else:
            super().handle_websocket_upgrade()
            websocket = cast("BoundedWebSocket", self.transport.get_protocol())
            self._listener.has_request(self)
            websocket.place, self._place = self._place, None

    def answer_last(self, idle_seconds: float) -> None:
        """Let the answer at hand, or the next, be this connection's last: others take what comes later.

        A connection that has had answers is closed once it was idle for `idle_seconds`. A new one isn't: its first
        request is on its way.
        """
        if self._is_running:
            if self.cycle.response_started:
                self.cycle.keep_alive = False
            else:
                self.cycle.default_headers = self.server_state.default_headers  # they say that it is the last
        elif self.cycle is not None:
            self.loop.call_later(idle_seconds, self._close_if_idle)

    def end(self, refusal: Refusal) -> None:
        """Wait no longer for the rest of a request: answer it with `refusal`. A whole one ends by itself."""
        if self._is_running:
            is_coming = self._is_in_body and not self.pipeline and not self.cycle.response_started
        else:
            is_coming = self._is_in_head
        if is_coming:
            self._refuse(refusal)

    def shutdown(self) -> None:
        """Answer nothing after the request at hand; what a client is still to read stays for it a moment."""
        if not self._is_lingering:
            super().shutdown()

    def _close_if_idle(self) -> None:
        if not self._is_running and not self._is_in_head:
            self.transport.close()

    # -- what comes in ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        if not (self._may_be_body(data) if self._is_in_body else self._may_be_head(data)):
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
        except httptools.HttpParserError:
            self._refuse(Refusal(400, "invalid_http", "This is not HTTP/1.1."))
            return
        if self._is_in_head:
            self._head_tail = data[-3:]
        if self._is_in_head or not self._is_running:
            self._expect_head()
        else:
            self._stop_deadline()

    @property
    def _is_running(self) -> bool:
        """Whether a request's answer isn't complete yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def has_message(self) -> bool:
        """Whether the request at hand gets its next message without waiting; those behind it come after its body."""
        return self.cycle.message_event.is_set()

    def _may_be_head(self, data: bytes) -> bool:
        """Count bytes of a head; refuse one that is too large (431) before the parser has joined it."""
        size = self._head_size + len(data)
        if size > self._bounds.head_bytes:
            end = (self._head_tail + data).find(_END)
            if end < 0 or self._head_size - len(self._head_tail) + end + len(_END) > self._bounds.head_bytes:
                self._refuse(_head_too_large(self._bounds.head_bytes))
                return False
        self._head_size = size
        return True

    def _may_be_body(self, data: bytes) -> bool:
        """Count bytes of a body on the wire, whoever reads it; refuse what can only be padding."""
        if self.cycle.response_complete:
            return self._discard(len(data))
        self._wire_size += len(data)
        if self._wire_size > 2 * self._bounds.body_bytes + WIRE_OVERHEAD:
            self._refuse(Refusal(413, "request_too_large", "The body's chunks are larger than a body may be."))
            return False
        if self._idle_size > self._bounds.head_bytes:
            self._refuse(_head_too_large(self._bounds.head_bytes))
            return False
        self._idle_size += len(data)
        return True

    def _discard(self, size: int) -> bool:
        """Take in what nobody will read, but only so much; True while the parser is still to see it."""
        self._discarded += size
        if self._discarded > LINGER_BYTES:
            self.transport.pause_reading()
            self.linger()
        return not self._is_deaf

    # -- what the parser finds ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            # What was taken is answered, the last with `connection: close`; a client sends the others again.
            self._is_deaf = True
            self.pipeline[0][0].keep_alive = False
            raise OverflowError("too many requests at once")
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        self._is_in_head = False
        self._head_size = self._wire_size = self._idle_size = self._discarded = 0
        self._head_tail = b""
        if self.cycle is not before:
            self._listener.has_request(self)
            # A task that waits for the disconnect would cost each request more.
            cast("dict[str, Any]", self.scope)["connection"] = self
            self._is_in_body = True
            self.headers = []  # trailers; nobody reads them
        elif any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            self._refuse(Refusal(400, "invalid_http", "A websocket's handshake has no body."))
            raise ValueError("a body nobody would read")

    def on_body(self, body: bytes) -> None:
        self._idle_size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    # -- what goes out ------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        framed: Any = _without_chunks(app, cycle) if cycle.scope["http_version"] == "1.0" else app
        super()._start_asgi_task(cycle, framed)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_running and not self.is_lost:
            self._listener.waits(self)
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self.pause_writing()  # closing waits for a reader, but not for ever
        elif self._is_in_body and not self.pipeline:
            self._expect_head()  # until then the rest of a body that was answered unread may come

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, whether or not its last answer was read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._bounds.write_seconds, self._reader_stopped)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._writes_again()

    def _writes_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _reader_stopped(self) -> None:
        self._stalled = None
        self._count(499)
        self.transport.abort()

    # -- the deadline -------------------------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._bounds.head_seconds, self._deadline_passed)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self._is_running:
            self._expect_head()  # a head behind a request that runs: reading may be paused, so the client isn't slow
        elif self._is_in_head:
            seconds = self._bounds.head_seconds
            self._refuse(Refusal(408, "request_timeout", f"The request's head took longer than {seconds:g} s."))
        else:
            self.transport.close()  # nothing came, or the rest of a body that nobody waits for

    # -- saying no ----------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with `refusal`, if no other answer has begun, and close the connection; the first refusal counts."""
        if self._is_deaf:
            return
        self._is_deaf = True
        self._unset_keepalive_if_required()
        if self._is_running:
            if self.cycle.response_started or self.pipeline or not self._is_in_body:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._answer(refusal)
        log.info("refused", code=refusal.code, status=refusal.status, address=self.client and self.client[0])
        self.linger()

    @property
    def is_being_sent_to(self) -> bool:
        """Whether the client still sends the body of the request at hand."""
        return self._is_in_body and not self._is_lingering

    def linger(self) -> None:
        """Say that nothing more will be sent, and close soon: at once would be a reset, and the answer lost."""
        if self._is_lingering:
            return
        self._is_deaf = self._is_lingering = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_deadline()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    @property
    def is_lingering(self) -> bool:
        """Whether the connection is only kept for its client to read."""
        return self._is_lingering

    def _answer(self, refusal: Refusal) -> None:
        self._is_deaf = True
        request_id = uuid7()
        body = encode(openai_error(refusal, request_id))
        headers = {
            **{name.decode(): value.decode() for name, value in self.server_state.default_headers},
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": str(request_id),
            **refusal.headers,
            **_CLOSE,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[refusal.status] + lines.encode() + b"\r\n" + body)
        self._count(refusal.status)

    def _count(self, status: int) -> None:
        metrics: Metrics | None = self.app_state.get("metrics")
        if metrics is not None:
            metrics.answered("connection", status)


def _without_chunks(application: Application, cycle: RequestResponseCycle) -> Application:
    """Return `application`, whose answer is sent by `cycle` in no chunks: without a length it ends with the connection,
    which is all that HTTP/1.0 knows.
    """

    async def application_without_chunks(scope: Scope, receive: Receive, send: Send) -> None:
        is_measured = False

        async def send_unframed(message: ASGIMessage) -> None:
            nonlocal is_measured
            if message["type"] == "http.response.start":
                is_measured = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = None if is_measured else False
            elif not is_measured:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await application(scope, receive, send_unframed)

    return application_without_chunks


def _head_too_large(most: int) -> Refusal:
    text = f"The request's line and headers are larger than {most:,} bytes."
    return Refusal(431, "request_header_fields_too_large", text)
