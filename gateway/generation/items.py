"""An answer as items: what the engine's pieces of text are parts of. Each API renders the same items.

    reasoning ─► message ─► call ─► call        each item begins, grows, and ends before the next one begins

A request with `n` has several answers, each with items of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from inference.messages import Message, Part, Reasoning, ToolCall
from inference.types import CallPiece, Delta, FinishReason, PositionLogprobs


class ItemKind(Enum):
    """What an item is: text for the client, the model's thought, or the call of a function."""

    MESSAGE = "message"
    REASONING = "reasoning"
    CALL = "call"


class Item:
    """One item so far. Its `text` is a message's or a thought's, or a call's arguments; `logprobs` are a message's."""

    __slots__ = ("answer", "call_id", "kind", "logprobs", "name", "number", "place", "texts")

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

    __slots__ = ("ended", "index", "is_open", "items", "prompt_logprobs")

    def __init__(self, index: int) -> None:
        self.index = index
        self.items: list[Item] = []
        self.is_open = False  # the last item may grow
        self.ended: FinishReason | None = None
        self.prompt_logprobs: list[PositionLogprobs] = []  # the first answer's, of the prompt that all share

    @property
    def text(self) -> str:
        """The text of its messages."""
        return "".join(item.text for item in self.items if item.kind is ItemKind.MESSAGE)

    @property
    def reasoning(self) -> str:
        """What the model thought."""
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


class What(Enum):
    """What became of an item."""

    BEGAN = "began"
    GREW = "grew"
    ENDED = "ended"


class Change(NamedTuple):
    """What became of `item`; it grew by `text`, whose tokens have these `logprobs` if they were asked for."""

    what: What
    item: Item
    text: str = ""
    logprobs: tuple[PositionLogprobs, ...] = ()


class Narrator:
    """Tells what the engine's pieces mean for the items of `answers`; knows no API and no transport.

    An item that is the last of its answer is not told to have ended: the generation's end does that.
    """

    def __init__(self, answers: int = 1) -> None:
        self.answers = [Answer(index) for index in range(answers)]
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
            _grow(_open(answer, ItemKind.REASONING, changes), delta.reasoning, (), changes)
        if delta.text or delta.logprobs:
            _grow(_open(answer, ItemKind.MESSAGE, changes), delta.text, delta.logprobs, changes)
        for piece in delta.calls:
            item = _open(answer, ItemKind.CALL, changes, piece)
            if piece.arguments:
                _grow(item, piece.arguments, (), changes)
        if delta.ended is not None:
            answer.ended = delta.ended
        if changes and not answer.index:
            last = answer.items[-1]
            self._texts = last.texts if last.kind is ItemKind.MESSAGE else None
        return changes

    def open_message(self) -> list[Change]:
        """Begin a message in the first answer if that has no item: an API may want one, however empty."""
        changes: list[Change] = []
        if not self.answers[0].items:
            _open(self.answers[0], ItemKind.MESSAGE, changes)
        return changes


def _grow(item: Item, text: str, logprobs: tuple[PositionLogprobs, ...], changes: list[Change]) -> None:
    item.texts.append(text)
    item.logprobs += logprobs
    changes.append(Change(What.GREW, item, text, logprobs))


def _open(answer: Answer, kind: ItemKind, changes: list[Change], piece: CallPiece | None = None) -> Item:
    """Return the item that a piece of `kind` belongs to: the last one, or a new one behind it."""
    is_new_call = piece is not None and bool(piece.name)
    if answer.is_open and answer.items[-1].kind is kind and not is_new_call:
        return answer.items[-1]
    if answer.is_open:
        changes.append(Change(What.ENDED, answer.items[-1]))
    item = Item(
        kind,
        answer=answer.index,
        number=len(answer.items),
        place=sum(other.kind is kind for other in answer.items),
        call_id="" if piece is None else piece.id,
        name="" if piece is None else piece.name,
    )
    answer.items.append(item)
    answer.is_open = True
    changes.append(Change(What.BEGAN, item))
    return item
