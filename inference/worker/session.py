"""One gateway process as its worker sees it, and the socket that reaches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import zmq

from inference.protocol import UNNUMBERED, Fatal, FromWorker, Inbound, encode, numbered, worker_inbound
from inference.text.prepare import Prompt
from inference.worker.deployment import Deployment
from inference.worker.requests import Request


@dataclass(frozen=True, slots=True)
class Kept:
    """A prepared request that waits for its Submit; it counts as `size` bytes."""

    deployment: Deployment
    prompt: Prompt
    until: float
    size: int


@dataclass(slots=True, eq=False)
class Session:
    """What is known of one gateway: its numbers, its bytes, its prepared and its submitted requests."""

    identity: bytes
    renewed_at: float
    inbound: Inbound = field(default_factory=worker_inbound)
    frames: int = 0
    sent: int = 0
    received: int = 0
    kept: dict[str, Kept] = field(default_factory=dict)
    kept_bytes: int = 0
    requests: dict[str, Request] = field(default_factory=dict)

    @property
    def unread(self) -> int:
        """Bytes that were sent and that the gateway has not acknowledged."""
        return self.sent - self.received

    def keep(self, request_id: str, kept: Kept) -> None:
        """Keep a prepared request in place of an earlier one of the same id."""
        self.take(request_id)
        self.kept[request_id] = kept
        self.kept_bytes += kept.size

    def take(self, request_id: str) -> Kept | None:
        """Give up a prepared request and return it."""
        kept = self.kept.pop(request_id, None)
        if kept is not None:
            self.kept_bytes -= kept.size
        return kept


class PeerGoneError(Exception):
    """Nobody reads at that identity any more: a frame to it was lost."""


class Sender:
    """Writes numbered frames to the ROUTER socket; used by the reader thread alone."""

    def __init__(self, router: Any) -> None:
        self._router = router

    def send(self, session: Session, message: FromWorker) -> None:
        """Send the session's next frame; raise `PeerGoneError` when it has left."""
        body = encode(message)
        session.frames += 1
        session.sent += len(body)
        try:
            self._router.send_multipart([session.identity, numbered(session.frames), body], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise
            raise PeerGoneError from error

    def farewell(self, identity: bytes, message: Fatal) -> None:
        """Tell a gateway that its session is over, if it is still there."""
        try:
            self._router.send_multipart([identity, numbered(UNNUMBERED), encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise
