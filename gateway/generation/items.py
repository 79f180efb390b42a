"""An answer as items: what the engine's pieces of text are parts of. Each API renders the same items.

    reasoning ─► message ─► call ─► call

Text and thought go on with the last item, a piece of a call with its own call, whatever began behind that. An API that
has one item after the other is told of each to its end before the next one begins.

A request with `n` has several answers, each with items of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec

from inference.messages import Message, Part, Reasoning, ToolCall
from inference.types import CallPiece, Delta, FinishReason, PositionLogprobs


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
