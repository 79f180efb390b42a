"""The session of one gateway process, and the sending of its numbered frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import zmq

from inference.protocol import UNNUMBERED, Fatal, FromWorker, Inbound, encode_any, numbered, worker_inbound
from inference.text.prepare import Prompt
from inference.worker.deployment import Deployment
from inference.worker.requests import Request


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prepared request until its Submit or until `expires_at`; it counts as `size` bytes."""

    deployment: Deployment
    prompt: Prompt
    expires_at: float
    size: int


@dataclass(slots=True, eq=False)
class Session:
    """One gateway's session: its prepared and its submitted requests by id.

    `frames` is the number of the last frame sent, `sent` the bytes sent, `received` those that the gateway has read.
    """

    identity: bytes
    renewed_at: float
    inbound: Inbound = field(default_factory=worker_inbound)
    frames: int = 0
    sent: int = 0
    received: int = 0
    prepared: dict[str, PreparedPrompt] = field(default_factory=dict)
    prepared_bytes: int = 0
    requests: dict[str, Request] = field(default_factory=dict)

    @property
    def unread(self) -> int:
        """Bytes that were sent and that the gateway has not acknowledged."""
        return self.sent - self.received

    def add_prepared(self, request_id: str, prepared: PreparedPrompt) -> None:
        """Keep a prepared request, in place of an earlier one of the same id."""
        self.pop_prepared(request_id)
        self.prepared[request_id] = prepared
        self.prepared_bytes += prepared.size

    def pop_prepared(self, request_id: str) -> PreparedPrompt | None:
        """Remove a prepared request and return it; None when there is none."""
        prepared = self.prepared.pop(request_id, None)
        if prepared is not None:
            self.prepared_bytes -= prepared.size
        return prepared


class PeerGoneError(Exception):
    """The gateway is no longer connected: the frame was not sent."""


class Sender:
    """Writes numbered frames to the ROUTER socket; used by the reader thread alone."""

    def __init__(self, router: Any) -> None:
        self._router = router

    def send(self, session: Session, message: FromWorker) -> None:
        """Send the session's next frame; raise `PeerGoneError` when its gateway is no longer connected."""
        body = encode_any(message)
        session.frames += 1
        session.sent += len(body)
        try:
            self._router.send_multipart([session.identity, numbered(session.frames), body], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise
            raise PeerGoneError from error

    def send_fatal(self, identity: bytes, message: Fatal) -> None:
        """Tell a gateway that its session is over, if it is still connected."""
        try:
            self._router.send_multipart([identity, numbered(UNNUMBERED), encode_any(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise
