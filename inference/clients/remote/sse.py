"""Server-sent events of a chat completion, as they arrive."""

from __future__ import annotations

from typing import Any

import msgspec

LONGEST_EVENT = 1 << 20  # bytes


class GarbageError(Exception):
    """The server sent what no server of this API sends."""


class Piece(msgspec.Struct):
    """What a choice adds: `reasoning` by either of its names is thought, not answer."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    """One choice of an event; `stop_reason` and `matched_stop` are two servers' words for what stopped it."""

    delta: Piece | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None


class Chunk(msgspec.Struct):
    """One event. `error` is anything but null where the server failed in mid-stream."""

    choices: list[Choice] | None = None
    usage: Any = None
    timings: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(Chunk).decode
_decode_all = msgspec.json.Decoder(list[Chunk]).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class EventReader:
    """Turns what arrives of a stream into events; `is_ended` after its end mark. Comments are passed over."""

    def __init__(self) -> None:
        self.is_ended = False
        self._rest = b""

    def events(self, data: bytes) -> tuple[list[Chunk], GarbageError | None]:
        """Return the events that are complete with `data`, and what is wrong behind them, if anything is."""
        found: list[bytes] = []
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        failure = GarbageError("an event without end") if len(self._rest) > LONGEST_EVENT else None
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
                found.append(value)
            elif field not in {b"", b"event", b"id", b"retry"}:
                failure = GarbageError("no server-sent events")
                break
        try:
            return _decode_all(b"[%b]" % b",".join(found)), None if self.is_ended else failure
        except _UNREADABLE:
            return _readable(found), GarbageError("an event that can't be read")


def _readable(found: list[bytes]) -> list[Chunk]:
    """Return the events before the first that can't be read."""
    events = []
    for data in found:
        try:
            events.append(_decode(data))
        except _UNREADABLE:
            break
    return events
