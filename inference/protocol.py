"""The messages between gateway and worker, and the numbered frames that carry them.

A frame has two parts: its number (8 bytes, counted from 1 for each session and direction) and one tagged message in
msgpack. A gap in the numbers means that a frame was lost, and ends the session. Only `Fatal` has no number (0), since
its receiver may have no session here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from inference.messages import Image, Message, Part, Reasoning, ToolCall, ToolResult
from inference.types import (
    CallPiece,
    EngineInfo,
    Finished,
    FinishReason,
    GenerationRequest,
    Health,
    PositionLogprobs,
    Usage,
)

VERSION = 25  # a peer of another one is refused: raise it with every change of what is sent
UNNUMBERED = 0
MAX_FRAME_BYTES = 32 * 1024 * 1024  # of a gateway's; ZeroMQ closes the connection on a larger one
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of a worker's frames. A step of 8192 prompt tokens with 20 log-probabilities each sends 5 MiB, 512 vectors of
8192 numbers are 16 MiB, the tokens of a prompt of a million 13 MiB, the log-probabilities that best_of holds back for
one request 6 MiB (`MAX_HELD_LOGPROBS`); and a session with more unread ends in any case
(`WorkerConfig.session_bytes`).
"""


class ProtocolError(Exception):
    """The peer broke the protocol: a frame that can't be decoded or can't be true, or one with the wrong number."""


# -- to the worker --------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Opens a session; answered with `Ready`."""

    version: int = VERSION


class Prepare(msgspec.Struct, tag="prepare", frozen=True):
    """Apply chat template and tokenizer and keep the ids; answered with `PreparedReply` or `Refused` for `call`."""

    call: int
    deployment: str
    request: GenerationRequest


class Tokenize(msgspec.Struct, tag="tokenize", frozen=True):
    """Tokenise the prompt and keep nothing; answered with `TokensReply` or `Refused` for `call`."""

    call: int
    deployment: str
    request: GenerationRequest
    special: bool = True
    with_texts: bool = False


class Detokenize(msgspec.Struct, tag="detokenize", frozen=True):
    """Say the text of the token ids in the prompt; answered with `TextReply` or `Refused` for `call`."""

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
    """End a request, whose `Finished` still comes, or forget a prepared one."""

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
    """Renew the session; its gateway has read `received` bytes in all. Answered with `Stats`."""

    received: int


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """End the session: its requests are cancelled."""


ToWorker = Hello | Prepare | Tokenize | Detokenize | Submit | Extend | Cancel | UsageOf | Drain | Renew | Goodbye

# -- from the worker ------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The session is open. `incarnation` identifies the worker process; `engines` are its deployments by name."""

    incarnation: str
    engines: dict[str, EngineInfo]


class PreparedReply(msgspec.Struct, tag="prepared", frozen=True):
    """The number of prompt tokens, the most tokens that the request may generate, and the wishes left open."""

    call: int
    prompt_tokens: int
    max_output: int
    not_enforced: tuple[str, ...] = ()


class TokensReply(msgspec.Struct, tag="tokens", frozen=True):
    """The token ids of a prompt and, where they were asked for, the tokens as the vocabulary writes them."""

    call: int
    ids: tuple[int, ...]
    texts: tuple[str, ...] = ()


class TextReply(msgspec.Struct, tag="text", frozen=True):
    """The text of token ids."""

    call: int
    text: str


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A call (`call` not 0) or a submitted request (`id`) that the worker doesn't take; nothing ran. `seconds` is when
    one of its tenant may be taken, where that is known.
    """

    code: str
    message: str
    kind: str
    call: int = 0
    id: str = ""
    param: str | None = None
    seconds: int = 0


class WireStarted(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """`Started` of request `id`."""

    id: str
    cached: int
    seed: int | None = None


class WireDelta(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """`Delta` of request `id`."""

    id: str
    text: str
    input: int
    cache_read: int
    output: int
    reasoning: int
    tokens: tuple[int, ...] = ()
    index: int = 0
    ended: FinishReason | None = None
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    thought: str = ""
    calls: tuple[CallPiece, ...] = ()
    stop: str | int | None = None


class WireVector(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """`Vector` of request `id`."""

    id: str
    index: int
    data: bytes
    labels: tuple[str, ...] = ()


class WireFinished(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """`Finished` of request `id`."""

    id: str
    finished: Finished


WireEvent = WireStarted | WireDelta | WireVector | WireFinished


class Batch(msgspec.Struct, tag="batch", frozen=True):
    """The events of one step for one session."""

    events: list[WireEvent]


class UsageReply(msgspec.Struct, tag="usage", frozen=True):
    """Evidence about a request: `state` is finished, running, nothing_ran or lost."""

    call: int
    state: str
    finished: Finished | None = None
    usage: Usage | None = None


class Drained(msgspec.Struct, tag="drained", frozen=True):
    """Nothing runs any more on the drained deployment."""

    call: int


class Stats(msgspec.Struct, tag="stats", frozen=True):
    """The answer to a renewal: the worker's incarnation, its number of steps, and each deployment's health."""

    incarnation: str
    steps: int
    health: dict[str, Health]


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """The session is over: unknown, broken or too slow. Its requests are being cancelled."""

    incarnation: str
    reason: str


FromWorker = Ready | PreparedReply | TokensReply | TextReply | Refused | Batch | UsageReply | Drained | Stats | Fatal

PARTS: dict[str, type[Image | Reasoning | ToolCall | ToolResult]] = {
    kind.__name__: kind for kind in (Image, Reasoning, ToolCall, ToolResult)
}


def _encoded(message: object) -> tuple[str, list[object]]:
    """Return how a message of a chat travels: a part that isn't text beside the name of its kind."""
    if not isinstance(message, Message):
        raise NotImplementedError(f"{type(message).__name__} doesn't travel")
    return message.role, [part if isinstance(part, str) else (type(part).__name__, part) for part in message.parts]


def _decoded(kind: type, value: object) -> Message:
    """Return the message of a chat that `_encoded` made `value` of; raise msgspec's error for anything else."""
    role, given = msgspec.convert(value, tuple[str, list[str | tuple[str, dict[str, Any]]]])
    parts: list[Part] = []
    for part in given:
        if isinstance(part, str):
            parts.append(part)
        elif (known := PARTS.get(part[0])) is not None:
            parts.append(msgspec.convert(part[1], known))
        else:
            raise ValueError(f"no part of a message is a {part[0]}")
    return Message(role, tuple(parts))


_encoder = msgspec.msgpack.Encoder(enc_hook=_encoded)
_to_worker = msgspec.msgpack.Decoder(ToWorker, dec_hook=_decoded)
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_number = struct.Struct("!Q")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_LEAST, _MOST = -(2**63), 2**64 - 1  # of the numbers in msgpack


def encode(message: ToWorker | FromWorker) -> bytes:
    """Return the second part of the frame that carries `message`; raise UnicodeEncodeError for half a character."""
    return _encoder.encode(message)


def encode_any(message: FromWorker) -> bytes:
    """Return the second part of a worker's frame, whatever the message says.

    Half a character (a lone surrogate) travels as U+FFFD, a number beyond 64 bits as the nearest of them: what a model
    writes, or its folder has, ends nobody else's session.
    """
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError):
        return _encoder.encode(_sendable(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _sendable(value: Any) -> Any:
    """Return `value`, of Python's own types, with nothing in it that msgpack can't carry."""
    match value:
        case str():
            return _HALF_CHARACTER.sub("\ufffd", value)
        case int():
            return min(max(value, _LEAST), _MOST)
        case dict():
            return {_sendable(key): _sendable(item) for key, item in value.items()}
        case list() | tuple():
            return [_sendable(item) for item in value]
    return value


def numbered(number: int) -> bytes:
    """Return the first part of frame `number`."""
    return _number.pack(number)


class Inbound:
    """Decodes one direction of one session, and checks that its numbers have no gap."""

    __slots__ = ("_decoder", "_next")

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._next = 1

    def read(self, parts: Sequence[bytes]) -> Any:
        """Return the message in `parts`; raise `ProtocolError` for a gap, a repeat, an undecodable body, or a state
        that can't be: it would break whoever adds up the states of all workers.
        """
        if len(parts) != 2 or len(parts[0]) != _number.size:
            raise ProtocolError(f"a frame of {len(parts)} parts")
        (number,) = _number.unpack(parts[0])
        if number not in {self._next, UNNUMBERED}:
            raise ProtocolError(f"frame {number} came where {self._next} was due")
        try:
            message = self._decoder.decode(parts[1])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"frame {number}: {error}") from error
        if isinstance(message, Stats) and not all(health.is_possible for health in message.health.values()):
            raise ProtocolError(f"frame {number}: a deployment's state that can't be")
        if number != UNNUMBERED:
            self._next += 1
        elif not isinstance(message, Fatal):
            raise ProtocolError("a frame without a number")
        return message


def worker_inbound() -> Inbound:
    """Return a decoder of the frames that a gateway sends in one session."""
    return Inbound(_to_worker)


def client_inbound() -> Inbound:
    """Return a decoder of the frames that a worker sends in one session."""
    return Inbound(_from_worker)
