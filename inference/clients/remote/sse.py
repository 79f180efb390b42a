"""Server-sent events of a chat completion, as they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

LONGEST_EVENT = 1 << 20  # bytes


class GarbageError(Exception):
    """The server sent what no server of this API sends."""


class Function(msgspec.Struct):
    """A piece of a called function: of its name or its arguments."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A piece of the function call that `index` or `id` tells, where the server says either."""

    index: int | str | None = None
    id: str | None = None
    function: Function | None = None

    @property
    def name(self) -> str:
        """Name of the called function, where the piece says it."""
        return (self.function and self.function.name) or ""

    @property
    def arguments(self) -> str:
        """Text that the piece adds to the arguments."""
        return (self.function and self.function.arguments) or ""


class Piece(msgspec.Struct):
    """A choice's delta: `reasoning` by either of its names is thought, not answer."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None

    @property
    def thought(self) -> str:
        """Text that the piece adds to the thought."""
        return self.reasoning_content or self.reasoning or ""


class Likely(msgspec.Struct):
    """A token that might stand at a position of the text, with its log-probability."""

    token: str
    logprob: float


class Chosen(Likely):
    """The token that stands there, and the most probable ones."""

    top_logprobs: list[Likely] | None = None


class Logprobs(msgspec.Struct):
    """The tokens that a choice adds to its text."""

    content: list[Chosen] | None = None


class Choice(msgspec.Struct):
    """One choice of an event; a completion without messages has `text`. `stop_reason` and `matched_stop` are two
    servers' words for what stopped it.
    """

    delta: Piece | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    logprobs: Logprobs | None = None


class Chunk(msgspec.Struct):
    """One event. `error` is anything but null where the server failed in mid-stream; TGI may add an `error_type`."""

    choices: list[Choice] | None = None
    usage: Any = None
    timings: Any = None
    error: Any = None
    error_type: Any = None


@dataclass(frozen=True, slots=True)
class Texts:
    """Events, one after the other, of which each adds its text to the answer and says nothing else."""

    texts: list[str]


Arrival = Chunk | Texts

_decode = msgspec.json.Decoder(Chunk).decode
_decode_all = msgspec.json.Decoder(list[Chunk]).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_SAMPLE = Chunk(choices=[Choice(delta=Piece(content="x"))])
_MANY = 8  # lines in one read from which on it is worth looking whether they are alike
_MOST_BEHIND = 4  # events behind those that are alike: the end's reason, usage, the end mark


class EventReader:
    """Turns what arrives of a stream into events; `is_ended` after its end mark. Comments are passed over."""

    def __init__(self) -> None:
        self.is_ended = False
        self._rest = b""
        self._around: tuple[bytes, bytes] | None = None  # what stands around the text of an event that has only text

    def events(self, data: bytes) -> tuple[list[Arrival], GarbageError | None]:
        """Return the events that are complete with `data`, and what is wrong behind them, if anything is."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        failure = GarbageError("an event without end") if len(self._rest) > LONGEST_EVENT else None
        alike = self._alike(lines) if len(lines) >= _MANY else None
        if alike is None:
            found, garbage = self._read(lines)
        else:
            start, end, texts = alike
            found, garbage = self._read(lines[:start])
            if garbage is None and not self.is_ended:
                last, garbage = self._read(lines[end:])
                found = [*found, texts, *last]
        return found, None if self.is_ended else garbage or failure

    def _alike(self, lines: list[bytes]) -> tuple[int, int, Texts] | None:
        """Return where a stretch of events begins and ends that differ in nothing but their texts, and these.

        An answer is hundreds of events with the same bytes around a word each, and many of them arrive together.
        """
        if self._around is None or not lines[0].startswith(self._around[0]):
            self._around = _around(lines[2])  # the first may open the answer
            if self._around is None:
                return None
        opening, closing = self._around
        start = 0 if lines[0].startswith(opening) else 2
        events, blanks = lines[start::2], lines[start + 1 :: 2]
        while events and not (events[-1].endswith(closing) and events[-1].startswith(opening)):
            events.pop()
            if len(lines) - start - 2 * len(events) > 2 * _MOST_BEHIND:
                return None
        text = slice(len(opening), -len(closing))
        texts = [event[text] for event in events]
        quoted = b'"%b"' % b'","'.join(texts)
        if (
            any(blanks[: len(events)])
            or len(blanks) < len(events)
            or b"".join(events) != opening + (closing + opening).join(texts) + closing
            or quoted.count(b'"') != 2 * len(texts)  # they are no texts, or have quotes in them
            or b'\\"' in quoted
        ):
            return None
        try:
            return start, start + 2 * len(events), Texts(_decode_texts(b"[%b]" % quoted))
        except _UNREADABLE:
            return None

    def _read(self, lines: list[bytes]) -> tuple[list[Arrival], GarbageError | None]:
        """Return the events of whole lines, and what is wrong behind them."""
        found: list[bytes] = []
        failure = None
        for line in lines:
            if line.startswith(b"data: {"):  # as nearly all of them do
                found.append(line[6:])
                continue
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                value = value.strip()
                if value == b"[DONE]":
                    self.is_ended = True
                    break
                if value:
                    found.append(value)
            elif field == b"error":  # older versions of llama.cpp
                found.append(b'{"error":%b}' % value.strip())
            elif field not in {b"", b"event", b"id", b"retry"}:
                failure = GarbageError("no server-sent events")
                break
        try:
            return [*_decode_all(b"[%b]" % b",".join(found))], failure
        except _UNREADABLE:
            self.is_ended = False
            return _readable(found), GarbageError("an event that can't be read")


def _around(event: bytes) -> tuple[bytes, bytes] | None:
    """Return what stands around the text of an event; None unless it has text and nothing else."""
    before, found, rest = event.partition(b'"content":"')
    _, quote, behind = rest.partition(b'"')
    opening, closing = before + found, quote + behind
    try:
        is_text = opening.startswith(b"data: {") and _decode(opening[6:] + b"x" + closing) == _SAMPLE
    except _UNREADABLE:
        return None
    return (opening, closing) if is_text else None


def _readable(found: list[bytes]) -> list[Arrival]:
    """Return the events before the first that can't be read."""
    events: list[Arrival] = []
    for data in found:
        try:
            events.append(_decode(data))
        except _UNREADABLE:
            break
    return events
