"""An answer as items: what the engine's pieces of text are parts of. Each API renders the same items.

    reasoning ─► message ─► call ─► call

Text and thought go on with the last item, a piece of a call with its own call, whatever began behind that. An API that
has one item after the other is told of each to its end before the next one begins.

A request with `n` has several answers, each with items of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from gateway.durable.delivery import Outcome
from inference.messages import Message, Part, Reasoning, ToolCall
from inference.types import CallPiece, Delta, FinishReason, PositionLogprobs, Started, Vector

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
    """The characters that a Delta counts as: its texts, and an estimate for each log-probability.

    Those of the prompt don't count: all of them come at once, before anybody could have read one.
    """
    size = len(delta.text)
    if not delta.is_plain:
        size += len(delta.reasoning) + sum(len(piece.name) + len(piece.arguments) for piece in delta.calls)
        size += sum(64 * (1 + len(entry.top)) for entry in delta.logprobs)
    return size


class ItemKind(Enum):
    """The kind of an item: text for the client, the model's thought, or the call of a function."""

    MESSAGE = "message"
    REASONING = "reasoning"
    CALL = "call"


class Item:
    """One item so far. Its `text` is a message's or a thought's, or a call's arguments; `logprobs` are a message's."""

    __slots__ = ("answer", "call_id", "kind", "logprobs", "name", "number", "place", "texts", "waiting")

    def __init__(
        self, kind: ItemKind, *, answer: int = 0, number: int = 0, place: int = 0, call_id: str = "", name: str = ""
    ) -> None:
        self.kind = kind
        self.answer = answer
        self.number = number  # among all items of its answer
        self.place = place  # among the items of its kind
        self.call_id = call_id
        self.name = name
        self.texts: list[str] = []
        self.logprobs: list[PositionLogprobs] = []
        self.waiting: list[Change] = []  # for the end of the item before it

    @property
    def is_whole(self) -> bool:
        """Whether nothing but white space can be added to it once another item has begun."""
        if self.kind is not ItemKind.CALL:
            return True
        try:
            msgspec.json.decode(self.text, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        return True

    @property
    def text(self) -> str:
        """Its whole text so far."""
        return "".join(self.texts)

    @property
    def part(self) -> Part:
        """The item as a part of a message, for the next turn of its conversation."""
        match self.kind:
            case ItemKind.MESSAGE:
                return self.text
            case ItemKind.REASONING:
                return Reasoning(self.text)
            case ItemKind.CALL:
                return ToolCall(self.call_id, self.name, self.text)


class Answer:
    """One answer so far: its items in their order, and why it ended where the engine says so of each."""

    __slots__ = ("_open", "_places", "ended", "index", "items", "prompt_logprobs")

    def __init__(self, index: int) -> None:
        self.index = index
        self.items: list[Item] = []
        self._open: Item | None = None  # the one that an API with one item after the other is at
        self._places: dict[int, Item] = {}  # the calls by their index
        self.ended: FinishReason | None = None
        self.prompt_logprobs: list[PositionLogprobs] = []  # the first answer's, of the prompt that all share

    @property
    def text(self) -> str:
        """The text of its messages."""
        return "".join(item.text for item in self.items if item.kind is ItemKind.MESSAGE)

    @property
    def reasoning(self) -> str:
        """The model's thought."""
        return "".join(item.text for item in self.items if item.kind is ItemKind.REASONING)

    @property
    def calls(self) -> list[Item]:
        """The calls of functions."""
        return [item for item in self.items if item.kind is ItemKind.CALL]

    @property
    def logprobs(self) -> list[PositionLogprobs]:
        """The log-probabilities of its messages' tokens."""
        return [entry for item in self.items for entry in item.logprobs]

    @property
    def message(self) -> Message:
        """The answer as a message, for the next turn of its conversation."""
        return Message("assistant", tuple(item.part for item in self.items) or ("",))

    @property
    def is_told(self) -> bool:
        """Whether an API with one item after the other is at the last one."""
        return self._open is self.items[-1]

    def last(self, kind: ItemKind, changes: list[Change]) -> Item:
        """Return the last item if it is of `kind`, else a new one."""
        is_kind = bool(self.items) and self.items[-1].kind is kind
        return self.items[-1] if is_kind else self._begin(kind, changes)

    def call(self, piece: CallPiece, changes: list[Change]) -> Item:
        """Return the call that `piece` belongs to."""
        item = self._places.get(piece.index)
        if item is None:
            item = self._begin(ItemKind.CALL, changes, piece.id, piece.name)
            self._places[piece.index] = item
        return item

    def in_turn(self, changes: list[Change], *, is_over: bool = False) -> list[Change]:
        """Return those of `changes`, and of earlier ones that waited, that an API with one item after the other can be
        told: a call that isn't whole may go on until the answer `is_over`.
        """
        told: list[Change] = []
        for change in changes:
            self._open = self._open or change.item
            (told if change.item is self._open else change.item.waiting).append(change)
        while self._open is not None and not self.is_told and (is_over or self._open.is_whole):
            told.append(Change(What.ENDED, self._open))
            self._open = self.items[self._open.number + 1]
            told += self._open.waiting
        return told

    def _begin(self, kind: ItemKind, changes: list[Change], call_id: str = "", name: str = "") -> Item:
        place = sum(other.kind is kind for other in self.items)
        item = Item(kind, answer=self.index, number=len(self.items), place=place, call_id=call_id, name=name)
        self.items.append(item)
        changes.append(Change(What.BEGAN, item))
        return item


class What(Enum):
    """The kinds of change of an item."""

    BEGAN = "began"
    GREW = "grew"
    ENDED = "ended"


class Change(NamedTuple):
    """A change of `item`, which grew by `text`, whose tokens have these `logprobs` if they were asked for."""

    what: What
    item: Item
    text: str = ""
    logprobs: tuple[PositionLogprobs, ...] = ()


class Narrator:
    """Tells what the engine's pieces mean for the items of `answers`; knows no API and no transport.

    An item that is the last of its answer is not told to have ended: the generation's end does that. With `in_turn`
    each is told to its end before the next one begins, else as it comes, and no end.
    """

    def __init__(self, answers: int = 1, *, in_turn: bool = True) -> None:
        self.answers = [Answer(index) for index in range(answers)]
        self._in_turn = in_turn
        self._texts: list[str] | None = None  # of the message that the first answer is at

    def extend(self, delta: Delta) -> bool:
        """Take a `delta` that only goes on with the message that the first answer is at, as nearly every one does.

        False for any other, which is left to `take`: this spares an answer's tokens what few of them need.
        """
        if self._texts is None or not delta.is_plain:
            return False
        self._texts.append(delta.text)
        return True

    def take(self, delta: Delta) -> list[Change]:
        """Return what `delta` changes, in order; nothing where it has no text."""
        answer = self.answers[delta.index]
        changes: list[Change] = []
        answer.prompt_logprobs += delta.prompt_logprobs
        if delta.reasoning:
            _grow(answer.last(ItemKind.REASONING, changes), delta.reasoning, (), changes)
        if delta.text or delta.logprobs:
            _grow(answer.last(ItemKind.MESSAGE, changes), delta.text, delta.logprobs, changes)
        for piece in delta.calls:
            item = answer.call(piece, changes)
            if piece.arguments:
                _grow(item, piece.arguments, (), changes)
        if delta.ended is not None:
            answer.ended = delta.ended
        told = answer.in_turn(changes) if self._in_turn else changes
        if changes and not answer.index:
            last = answer.items[-1]
            is_at_it = last.kind is ItemKind.MESSAGE and (answer.is_told or not self._in_turn)
            self._texts = last.texts if is_at_it else None
        return told

    def close(self, *, with_message: bool = False) -> list[Change]:
        """Return what the first answer's end lets be told. `with_message` an answer without an item gets a message: an
        API may want one, however empty.
        """
        answer, changes = self.answers[0], list[Change]()
        if with_message and not answer.items:
            answer.last(ItemKind.MESSAGE, changes)
        return answer.in_turn(changes, is_over=True)


def _grow(item: Item, text: str, logprobs: tuple[PositionLogprobs, ...], changes: list[Change]) -> None:
    item.texts.append(text)
    item.logprobs += logprobs
    changes.append(Change(What.GREW, item, text, logprobs))
