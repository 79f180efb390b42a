"""The gateway's end of one session with a worker: a DEALER socket on the event loop, and numbered frames.

A link exists as long as its session. It renews the session every `renew_seconds`. It fails, once, when the worker has
left a Hello or Renew unanswered for `silence_seconds`, breaks the protocol, or ends the session; its owner then opens
a new one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

import zmq

from inference.curve import secure_client
from inference.errors import InvalidRequestError
from inference.protocol import (
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
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

FRAMES_A_TURN = 64  # a worker that sends without end must not keep a gateway's loop from everything else
FRAMES_UNREAD = 16  # that wait here; more wait at the worker, which bounds them: a gateway's memory isn't the place


class Link:
    """One session's socket. `receive` gets each message in order; `failed` is called once, with the reason."""

    def __init__(
        self,
        *,
        context: zmq.Context[Any],
        endpoint: str,
        server_key: str = "",
        secret_key: str = "",
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
        self._unanswered_since: float | None = None  # when the oldest unanswered Hello or Renew was sent
        self._closed = False
        self._reads_on = False  # the loop's next turn reads
        socket: Any = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"s" + secrets.token_bytes(15))
        socket.setsockopt(zmq.LINGER, 200)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, FRAMES_UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
        if server_key:
            socket.setsockopt(zmq.IPV6, 1)
            secure_client(socket, server_key=server_key, secret_key=secret_key)
        socket.connect(endpoint)
        self._socket = socket
        self._descriptor: int = socket.getsockopt(zmq.FD)
        self._loop.add_reader(self._descriptor, self._read_all)
        self._renewals = self._loop.create_task(self._renew(), name=f"renew {endpoint}")
        self.send(Hello())

    def send(self, message: ToWorker) -> None:
        """Queue the next frame; frames that the worker never reads are lost when the link fails.

        Raise `InvalidRequestError`, having sent nothing, for a message that is too large or not valid Unicode.
        """
        if self._closed:
            return
        try:
            body = encode(message)
        except UnicodeEncodeError as error:
            raise InvalidRequestError("the request holds half a character (a lone surrogate)") from error
        if len(body) > MAX_FRAME_BYTES:
            raise InvalidRequestError(f"the request is larger than {MAX_FRAME_BYTES} bytes", code="request_too_large")
        if self._unanswered_since is None and isinstance(message, Hello | Renew):
            self._unanswered_since = self._clock()
        self._frames += 1
        try:
            self._socket.send_multipart([numbered(self._frames), body], zmq.NOBLOCK)
        except zmq.Again:
            # The queue is unbounded, so this means that there is no connection any more, and none is tried again.
            self._fail("the worker refuses the connection, or sent a frame that is too large")
            return
        # The descriptor is edge-triggered: sending may have consumed the edge of a frame that waits to be read.
        if self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._read_on()

    def close(self) -> None:
        """End the session with a Goodbye; `failed` is not called."""
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

    def _read_all(self) -> bool:
        """Read what has arrived, `FRAMES_A_TURN` of it in one turn of the loop; False while there is more."""
        for _ in range(FRAMES_A_TURN):
            if self._closed:
                return True
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            try:
                message: FromWorker = self._inbound.read(parts)
            except ProtocolError as error:
                self._fail(str(error))
                return True
            self._read_bytes += len(parts[1])
            if self._unanswered_since is not None:
                self._unanswered_since = self._clock()  # it isn't silent, wherever its answer is
            if isinstance(message, Fatal):
                self._fail(message.reason)
                return True
            if isinstance(message, Ready | Stats):
                if self.incarnation not in {"", message.incarnation}:
                    self._fail("another worker answers at this endpoint")
                    return True
                self.incarnation = message.incarnation
                self._unanswered_since = None
            self._receive(message)
        self._read_on()
        return False

    def _read_on(self) -> None:
        if not self._reads_on:
            self._reads_on = True
            self._loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        self._reads_on = False
        self._read_all()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            # After a long pause of this event loop the answers may be waiting: they are read before silence is
            # measured, and only a Hello or Renew that was sent can be unanswered.
            while not self._read_all():  # noqa: ASYNC110 - others have their turn in between
                await asyncio.sleep(0)
            if self._closed:
                return
            silence = self._clock() - self._unanswered_since if self._unanswered_since is not None else 0.0
            if silence > self._silence_seconds:
                self._fail(f"the worker has been silent for {silence:.1f} s")
                return
            self.send(Renew(self._read_bytes))


def _ignore(reason: str) -> None:
    """Replaces `failed` while the link is being closed."""
