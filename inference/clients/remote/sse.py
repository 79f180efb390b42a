"""Server-sent events of a chat completion, as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import StreamReader

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


async def chunks(content: StreamReader) -> AsyncIterator[list[Chunk]]:
    """Yield the events that arrive together, up to the end mark or the end of the stream; comments are passed over.

    Raise `GarbageError` for anything else, after the events before it.
    """
    rest = b""
    while piece := await content.readany():
        events, is_end = [], False
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        failure = GarbageError("an event without end") if len(rest) > LONGEST_EVENT else None
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field != b"data":
                if field in {b"", b"event", b"id", b"retry"}:
                    continue
                failure = GarbageError("no server-sent events")
                break
            data = value.strip()
            if is_end := data == b"[DONE]":
                break
            try:
                events.append(_decode(data))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                failure = GarbageError("an event that can't be read")
                break
        if events:
            yield events
        if is_end:
            return
        if failure is not None:
            raise failure
