"""The events of a generation, and the bounded buffer between it and the writer of the answer."""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.durable.outcome import Outcome
from inference.types import Delta, Started, Vector

MOST_UNREAD = 1 << 20  # characters


GenerationEvent = Started | Delta | Vector | Outcome


class EventBuffer:
    """Events in order, for one reader. Plain Deltas that wait are joined, and so is reasoning, so that a slow reader
    costs only their text.
    """

    def __init__(self, most_unread: int = MOST_UNREAD) -> None:
        self._events: deque[GenerationEvent] = deque()
        self._reader: asyncio.Future[None] | None = None  # set where an Event would cost a token three times as much
        self._most_unread = most_unread
        self._parts: list[str] = []  # texts of the unread Delta at the end of `_events`
        self._is_thought = False  # they are reasoning
        self._unread = 0

    @property
    def is_overfull(self) -> bool:
        """True when more text waits than a slow reader is allowed."""
        return self._unread > self._most_unread

    @property
    def first(self) -> GenerationEvent | None:
        """The next event, left where it is; None when there is none yet. A Delta has only its last text."""
        return self._events[0] if self._events else None

    def put(self, event: GenerationEvent) -> None:
        """Add `event` at the end."""
        if isinstance(event, Delta) and ((is_plain := event.is_plain) or event.is_thought):
            text, is_thought = (event.text, False) if is_plain else (event.reasoning, True)
            self._unread += len(text)
            if self._parts and is_thought is self._is_thought:
                self._parts.append(text)
                self._events[-1] = event
            else:
                self._close_delta()
                self._parts, self._is_thought = [text], is_thought
                self._events.append(event)
        else:
            self._close_delta()
            self._events.append(event)
            if isinstance(event, Delta):
                self._unread += _size(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> GenerationEvent:
        """Wait for the next event and take it out."""
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._parts and len(self._events) == 1:
            self._close_delta()
        event = self._events.popleft()
        if isinstance(event, Delta):
            self._unread -= _size(event)
        return event

    def _close_delta(self) -> None:
        """Give the unread Delta at the end its whole text; the next one starts anew."""
        if self._parts:
            last = self._events[-1]
            assert isinstance(last, Delta)
            if len(self._parts) > 1:
                text = "".join(self._parts)
                joined = Delta("", last.usage, reasoning=text) if self._is_thought else Delta(text, last.usage)
                self._events[-1] = joined
            self._parts = []


def _size(delta: Delta) -> int:
    """How many characters a Delta counts as: its texts, and about what each log-probability takes in writing.

    Those of the prompt don't count: all of them come at once, before anybody could have read one.
    """
    size = len(delta.text)
    if not delta.is_plain:
        size += len(delta.reasoning) + sum(len(piece.name) + len(piece.arguments) for piece in delta.calls)
        size += sum(64 * (1 + len(entry.top)) for entry in delta.logprobs)
    return size
