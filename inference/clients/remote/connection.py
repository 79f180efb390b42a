"""One HTTP/1.1 connection to an endpoint, and the answer that is read from it.

On httptools alone: a general client does more for each chunk of a stream than all else that a request needs here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MOST_HEAD = 1 << 16  # bytes of an answer's status and headers
MOST_UNREAD = 1 << 18  # bytes of a body that wait for their reader before no more is taken


class Connection(asyncio.Protocol):
    """Carries one request at a time: `send`, then `head` for the status, then `read` up to the body's end.

    An answer whose end only the connection's end could show is complete with that. What breaks it is raised as an
    OSError, after all that had arrived before.
    """

    def __init__(self) -> None:
        self.idle_since = 0.0  # on the loop's clock
        self._unread: list[bytes] = []
        self.on_body = self._unread.append  # the parser calls it for each chunk, which each event is
        self._parser = HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._on_end: Callable[[Connection], object] | None = None
        self._is_paused = False
        self._is_busy = False
        self.is_sent = False  # whether all of the request has left, so that the server may have read it
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._head_size = 0
        self._unread.clear()
        self._size = 0  # bytes that came since the last read, framing included
        self._is_complete = False
        self._is_framed = self._keeps = False

    @property
    def is_reusable(self) -> bool:
        """Whether the answer was read to its end, and another request may follow."""
        return self._is_complete and self._keeps and not self._unread and self._error is None

    def send(self, request: bytes) -> None:
        """Send a whole request; over one that was stopped, nothing."""
        self._begin()
        self._is_busy = True
        self.is_sent = self._error is None and not self._transport.is_closing()
        if self._error is None:
            self._transport.write(request)

    async def head(self, until: float) -> int:
        """Return the answer's status; raise TimeoutError when the loop's time is `until` before it has come."""
        while not self._status:
            await self._arrival(until)
        return self._status

    async def read(self, until: float) -> bytes:
        """Return what has arrived of the body since the last call, waiting for something; nothing at its end."""
        while not self._unread:
            if self._is_complete:
                return b""
            await self._arrival(until)
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._size = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def stop(self, error: Exception) -> None:
        """Close at once; whoever reads, now or later, gets `error` after what has arrived."""
        self._error = self._error or error
        if self._transport.get_write_buffer_size():
            self.is_sent = False
        self._transport.abort()
        self._wake()

    def finish(self, seconds: float, on_end: Callable[[Connection], object]) -> None:
        """Call `on_end` once the answer, of which nobody needs the rest, is complete; close after `seconds` without."""
        if self._is_complete:
            self._unread.clear()
            on_end(self)
            return
        self._on_end = on_end
        asyncio.get_running_loop().call_later(seconds, self._give_up)

    def close(self) -> None:
        """Close what is idle, or cut what isn't."""
        self.stop(ConnectionAbortedError("the connection was closed"))

    # -- what the transport calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_busy:
            self.stop(ConnectionError("the server spoke without being asked"))
            return
        if not self._status:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.stop(ConnectionError(f"the server doesn't speak HTTP/1.1: {error}"))
            return
        if not self._status and self._head_size > MOST_HEAD:
            self.stop(ConnectionError("the answer's head is too large"))
        self._size += len(data)
        if self._on_end is not None:
            self._unread.clear()
            if self._is_complete:
                on_end, self._on_end = self._on_end, None
                on_end(self)
        elif self._size > MOST_UNREAD and self._unread and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_busy and self._status and not self._is_framed and error is None:
            self._is_complete = True
        self._keeps = False
        if not self._is_complete:
            self._error = self._error or ConnectionResetError("the server closed the connection within an answer")
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        if self._on_end is not None:  # nobody waits for the rest of the answer, and none comes any more
            on_end, self._on_end = self._on_end, None
            on_end(self)

    # -- what the parser finds --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._is_busy:
            raise ValueError("a second answer, which wasn't asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked")):
            self._is_framed = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise ValueError("a compressed answer, which wasn't asked for")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._status = status
            self._keeps = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        if self._status:
            self._is_complete = True
            self._is_busy = False
        else:  # it was interim, such as 100
            self._is_framed = False

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _arrival(self, until: float) -> None:
        """Wait until something arrives, or the end."""
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        self._waiter, self._until = loop.create_future(), until
        if self._timer is None or self._timer.when() > until:
            self._look_at(until)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look_at(self, moment: float) -> None:
        """Look then whether who waits has waited too long: one timer for all that is waited for, most of it in vain."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if asyncio.get_running_loop().time() < self._until:
            self._look_at(self._until)
        else:
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_up(self) -> None:
        if self._on_end is not None:
            self.close()
