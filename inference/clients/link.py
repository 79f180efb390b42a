"""The gateway's end of one worker session: a DEALER socket on the event loop, numbered frames, and when to give up.

One link lives as long as its session. It renews itself each second; when its worker has been silent for five seconds,
speaks out of step, or says that the session is over, the link fails once, and its owner opens the next one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

import zmq

from inference.errors import InvalidRequestError
from inference.protocol import (
    FRAME_BYTES,
    Fatal,
    FromWorker,
    Goodbye,
    Hello,
    ProtocolError,
    Ready,
    Renew,
    Stats,
    ToWorker,
    client_inbound,
    encode,
    numbered,
)


class Link:
    """See the module. `receive` gets each message in order; `failed` is called once, with the reason."""

    def __init__(
        self,
        *,
        context: zmq.Context[Any],
        endpoint: str,
        receive: Callable[[FromWorker], None],
        failed: Callable[[str], None],
        renew_seconds: float,
        silence_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.incarnation = ""
        self._receive = receive
        self._failed = failed
        self._renew_seconds = renew_seconds
        self._silence_seconds = silence_seconds
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._inbound = client_inbound()
        self._frames = 0
        self._read_bytes = 0
        self._asked: float | None = None  # when the oldest question was sent that nobody has answered
        self._closed = False
        socket: Any = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"s" + secrets.token_bytes(15))
        socket.setsockopt(zmq.LINGER, 200)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.set_hwm(0)
        socket.connect(endpoint)
        self._socket = socket
        self._descriptor: int = socket.getsockopt(zmq.FD)
        self._loop.add_reader(self._descriptor, self._drain)
        self._renewals = self._loop.create_task(self._renew(), name=f"renew {endpoint}")
        self.send(Hello())

    def send(self, message: ToWorker) -> None:
        """Queue the next frame; what a dead worker doesn't take is lost with the link.

        Raise `InvalidRequestError`, having sent nothing, for a message that is too large or no valid Unicode.
        """
        if self._closed:
            return
        try:
            body = encode(message)
        except UnicodeEncodeError as error:
            raise InvalidRequestError("the request holds half a character (a lone surrogate)") from error
        if len(body) > FRAME_BYTES:
            raise InvalidRequestError(f"the request is larger than {FRAME_BYTES} bytes", code="request_too_large")
        if self._asked is None and isinstance(message, Hello | Renew):
            self._asked = self._clock()
        self._frames += 1
        try:
            self._socket.send_multipart([numbered(self._frames), body], zmq.NOBLOCK)
        except zmq.Again:
            # There is no limit to what may wait, so this means that the worker turned the connection down.
            self._fail("the worker refuses the connection")
            return
        # The descriptor tells of changes only once: sending may have eaten one that was about to be read.
        if self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._loop.call_soon(self._drain)

    def close(self) -> None:
        """End the session politely; `failed` is not called."""
        if not self._closed:
            self._failed = _ignore
            self.send(Goodbye())
        if not self._closed:
            self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._renewals.cancel()
        self._loop.remove_reader(self._descriptor)
        self._socket.close()

    def _fail(self, reason: str) -> None:
        if not self._closed:
            self._shut()
            self._failed(reason)

    def _drain(self) -> None:
        """Read everything that has arrived."""
        while not self._closed:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message: FromWorker = self._inbound.read(parts)
            except ProtocolError as error:
                self._fail(str(error))
                return
            self._read_bytes += len(parts[1])
            if isinstance(message, Fatal):
                self._fail(message.reason)
                return
            if isinstance(message, Ready | Stats):
                if self.incarnation not in {"", message.incarnation}:
                    self._fail("another worker answers at this endpoint")
                    return
                self.incarnation = message.incarnation
                self._asked = None
            self._receive(message)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            # A loop that was busy for long finds its answers waiting: they count before silence is judged, and
            # silence is only what follows a question, not what a loop that asked nothing has missed.
            self._drain()
            if self._closed:
                return
            silence = self._clock() - self._asked if self._asked is not None else 0.0
            if silence > self._silence_seconds:
                self._fail(f"the worker has been silent for {silence:.1f} s")
                return
            self.send(Renew(self._read_bytes))


def _ignore(reason: str) -> None:
    """Nobody waits for a closing link any more."""
