"""What gateway and worker say to each other: numbered frames, each one tagged message in msgpack.

A frame is two parts: the sender's running number (8 bytes, from 1, per session and direction) and the message. A gap
in the numbers means that a frame was lost, and ends the session. Only `Fatal` comes without a number (0): its receiver
may have no session here, so it expects none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from inference.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    UnpreparedError,
    UnreachableError,
)
from inference.types import (
    Delta,
    EngineInfo,
    Event,
    Evidence,
    Finished,
    GenerationRequest,
    Health,
    Lost,
    NothingRan,
    Running,
    Started,
    Usage,
    Vector,
)

VERSION = 1
UNNUMBERED = 0
MOST_TOKENS = 2**31  # of one class, and as much is too much
FRAME_BYTES = 32 * 1024 * 1024  # a larger one would cost the whole connection


class ProtocolError(Exception):
    """The other side sent what can't be: an undecodable frame, or one with the wrong number."""


# -- to the worker --------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Opens a session; answered with `Ready`."""

    version: int = VERSION


class Prepare(msgspec.Struct, tag="prepare", frozen=True):
    """Apply template and tokenizer and keep the ids; answered with `PreparedReply` or `Refused` for `call`."""

    call: int
    deployment: str
    request: GenerationRequest


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Generate what was prepared; answered with events, or with `Refused` for `id`, and then nothing ran."""

    id: str
    allowance: int
    is_final: bool


class Extend(msgspec.Struct, tag="extend", frozen=True):
    """Raise a request's allowance to `allowance` tokens in all."""

    id: str
    allowance: int
    is_final: bool


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """End a request; its `Finished` still comes."""

    id: str


class UsageOf(msgspec.Struct, tag="usage_of", frozen=True):
    """Ask for the evidence about a request; answered with `UsageReply`."""

    call: int
    id: str


class Drain(msgspec.Struct, tag="drain", frozen=True):
    """Take no new work for `deployment`, end what runs after `seconds`; answered with `Drained` when nothing runs."""

    call: int
    deployment: str
    seconds: float


class Renew(msgspec.Struct, tag="renew", frozen=True):
    """The session is alive and has read `received` bytes of what was sent to it; answered with `Stats`."""

    received: int


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The session ends: what it asked for is cancelled."""


ToWorker = Hello | Prepare | Submit | Extend | Cancel | UsageOf | Drain | Renew | Goodbye

# -- from the worker ------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The session is open: who answers, and what each deployment can do."""

    incarnation: str
    engines: dict[str, EngineInfo]


class PreparedReply(msgspec.Struct, tag="prepared", frozen=True):
    """The prompt's tokens and what the request may generate at most."""

    call: int
    prompt_tokens: int
    max_output: int


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A call (`call` not 0) or a submitted request (`id`) that the worker doesn't take; nothing ran."""

    code: str
    message: str
    kind: str
    call: int = 0
    id: str = ""
    param: str | None = None


class WireStarted(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """`Started` of request `id`."""

    id: str
    cached: int


class WireDelta(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """`Delta` of request `id`."""

    id: str
    text: str
    input: int
    cache_read: int
    output: int
    reasoning: int


class WireVector(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """`Vector` of request `id`."""

    id: str
    index: int
    data: bytes


class WireFinished(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """`Finished` of request `id`."""

    id: str
    finished: Finished


WireEvent = WireStarted | WireDelta | WireVector | WireFinished


class Batch(msgspec.Struct, tag="batch", frozen=True):
    """What one step brought for one session."""

    events: list[WireEvent]


class UsageReply(msgspec.Struct, tag="usage", frozen=True):
    """Evidence about a request: `state` is finished, running, nothing_ran or lost."""

    call: int
    state: str
    finished: Finished | None = None
    usage: Usage | None = None


class Drained(msgspec.Struct, tag="drained", frozen=True):
    """Nothing runs any more."""

    call: int


class Stats(msgspec.Struct, tag="stats", frozen=True):
    """The answer to a renewal: who answers, how many steps it has made, and each deployment's state."""

    incarnation: str
    steps: int
    health: dict[str, Health]


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """The session is over: unknown here, out of step, or too slow. What it asked for is being cancelled."""

    incarnation: str
    reason: str


FromWorker = Ready | PreparedReply | Refused | Batch | UsageReply | Drained | Stats | Fatal

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_number = struct.Struct("!Q")


def encode(message: ToWorker | FromWorker) -> bytes:
    """`message` as the body of a frame."""
    return _encoder.encode(message)


def numbered(number: int) -> bytes:
    """The first part of frame `number`."""
    return _number.pack(number)


class Inbound:
    """Reads one direction of one session: checks that the numbers have no gap, decodes the bodies."""

    __slots__ = ("_decoder", "_next")

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._next = 1

    def read(self, parts: Sequence[bytes]) -> Any:
        """Return the message in `parts`; raise `ProtocolError` for a gap, a repeat or an undecodable body."""
        if len(parts) != 2 or len(parts[0]) != _number.size:
            raise ProtocolError(f"a frame of {len(parts)} parts")
        (number,) = _number.unpack(parts[0])
        if number not in {self._next, UNNUMBERED}:
            raise ProtocolError(f"frame {number} came where {self._next} was due")
        try:
            message = self._decoder.decode(parts[1])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"frame {number}: {error}") from error
        if number != UNNUMBERED:
            self._next += 1
        elif not isinstance(message, Fatal):
            raise ProtocolError("a frame without a number")
        return message


def worker_inbound() -> Inbound:
    """The reader of what a gateway sends."""
    return Inbound(_to_worker)


def client_inbound() -> Inbound:
    """The reader of what a worker sends."""
    return Inbound(_from_worker)


# -- between wire and seam ------------------------------------------------------------------------------------------

_KINDS: dict[str, type[EngineError]] = {
    "invalid": InvalidRequestError,
    "draining": DrainingError,
    "overloaded": OverloadedError,
    "unprepared": UnpreparedError,
    "unreachable": UnreachableError,
}


def refusal_of(error: EngineError, *, call: int = 0, request_id: str = "") -> Refused:
    """`error` as it travels."""
    kind = next((name for name, cls in _KINDS.items() if type(error) is cls), "error")
    return Refused(error.code, error.message, kind, call, request_id, error.param)


def error_of(refused: Refused) -> EngineError:
    """The exception that `refused` stands for."""
    return _KINDS.get(refused.kind, EngineError)(refused.message, code=refused.code, param=refused.param)


def event_of(wire: WireEvent) -> Event:
    """The event as the seam knows it; raises `EngineError` for tokens that nobody can have counted."""
    match wire:
        case WireDelta():
            return Delta(wire.text, _countable(Usage(wire.input, wire.cache_read, wire.output, wire.reasoning)))
        case WireStarted():
            return Started(_countable(Usage(cache_read=wire.cached)).cache_read)
        case WireVector():
            return Vector(wire.index, wire.data)
        case WireFinished():
            _countable(wire.finished.usage)
            return wire.finished


def _countable(usage: Usage) -> Usage:
    """Return the usage: what is charged for is never below zero nor beyond what a record of it holds."""
    every_bit = usage.input | usage.cache_read | usage.output | usage.reasoning
    if not 0 <= every_bit < MOST_TOKENS:
        raise EngineError(f"The engine counted what can't be: {usage}.", code="usage_impossible")
    return usage


def evidence_reply(call: int, evidence: Evidence) -> UsageReply:
    """`evidence` as it travels."""
    match evidence:
        case Finished():
            return UsageReply(call, "finished", finished=evidence)
        case Running():
            return UsageReply(call, "running", usage=evidence.usage)
        case NothingRan():
            return UsageReply(call, "nothing_ran")
        case Lost():
            return UsageReply(call, "lost")


def evidence_of(reply: UsageReply) -> Evidence:
    """The evidence in `reply`; raises `EngineError` for what says nothing: an unknown state, an impossible usage."""
    if reply.state == "finished" and reply.finished is not None:
        _countable(reply.finished.usage)
        return reply.finished
    if reply.state == "running":
        return Running(_countable(reply.usage or Usage()))
    if reply.state == "nothing_ran":
        return NothingRan()
    if reply.state == "lost":
        return Lost()
    raise EngineError(f"The engine gave evidence of an unknown kind: {reply.state!r}.")
