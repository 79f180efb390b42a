"""The parts of an answer's text: the model's thought, its words, and its calls of functions.

    <think>Where is it?</think>I'll look.<tool_call>{"name": "find", "arguments": {"what": "it"}}</tool_call>
           reasoning            text                  call

White space between these is dropped. A piece that only looks like a call becomes text, unless the answer was cut in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby
from operator import attrgetter
from typing import Any

from inference.text.call_formats import CallFormat, marks_in
from inference.text.call_reader import SPACE, CallReader, Kinds, MalformedError
from inference.text.calls import read_calls
from inference.types import CallPiece, Told

_LEAST_BEGUN = 3  # characters of a marker at the end of a cut answer that are taken for its beginning


class _Kind(Enum):
    TEXT = auto()
    THOUGHT = auto()
    CALLS = auto()


@dataclass(frozen=True, slots=True)
class Markers:
    """Texts that a model writes before and behind its thought."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class Parsing:
    """How an answer is read: its thought stands between `markers`, and begins in the prompt if it `thinks` already.

    Calls of the `functions`, of whose parameters it has the types, are written in the format `calls`; with `once` the
    answer ends behind the first. The texts `silent` stand around its parts and belong to none; with them a thought may
    stand anywhere.
    """

    markers: Markers | None = None
    thinks: bool = False
    calls: CallFormat | None = None
    functions: Mapping[str, Kinds] = field(default_factory=dict)
    once: bool = False
    silent: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """The control tokens whose text is needed."""
        thought = (self.markers.begin, self.markers.end) if self.markers is not None else ()
        return (*marks_in(*thought, *self.silent), *(self.calls.marks if self.calls is not None else ()))


class AnswerParser:
    """Reads one answer as its text comes; the result is the same however the text is cut into pieces.

    `name` makes the ids of its calls. `is_over` is True behind a call that is to be the only one: what follows is not
    read. `is_thinking` and `is_calling` say what the next character belongs to.
    """

    def __init__(self, parsing: Parsing, name: str) -> None:
        self.is_thinking = False
        self.is_calling = False
        self._parsing = parsing
        self._name = name
        self._runs: list[tuple[_Kind, list[Any]]] = []
        self._has_begun = False  # something other than white space has come
        self._is_ended = False
        self._is_cut = False
        self._space = ""  # what stood before the opener that was found
        self._at_rest = False  # text without any of `_alarming` is text, however it goes on
        self._reader = CallReader(parsing.functions, self._identify, self._call, once=parsing.once)
        markers, calls = parsing.markers, parsing.calls
        thought = (markers.begin,) if markers is not None else ()
        begins = calls.begins if calls is not None else ()
        self._openers = (*(calls.openers if calls is not None else ()), *parsing.silent)
        self._openers += thought if parsing.silent else ()
        self._at_begin = (*thought, *begins)  # what opens a part at the very beginning alone
        self._alarming = frozenset((*SPACE, *(opener[0] for opener in self._openers)) if self._openers else ())
        self._steps = self._answer()
        next(self._steps)

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows belongs to the answer."""
        return self._reader.is_over

    def push(self, text: str) -> None:
        """Read more of the answer."""
        if self._at_rest and self._alarming.isdisjoint(text):
            self._tell(_Kind.TEXT, text)
            return
        for char in text:
            self._send(char)

    def finish(self, *, is_cut: bool = False) -> None:
        """Read the held back text as the end of the answer; if the answer `is_cut`, drop an unfinished call."""
        self._is_cut = is_cut
        self._send("")
        self._is_ended = True
        self._at_rest = False

    def take(self) -> tuple[Told, ...]:
        """Return what was read since the last time, in order."""
        told, self._runs = tuple(_told(*run) for run in self._runs), []
        return told

    def _tell(self, kind: _Kind, piece: str | CallPiece) -> None:
        if not piece:
            return
        self._has_begun = True
        if not self._runs or self._runs[-1][0] is not kind:
            self._runs.append((kind, []))
        self._runs[-1][1].append(piece)

    def _call(self, piece: CallPiece) -> None:
        self._tell(_Kind.CALLS, piece)

    def _identify(self) -> str:
        made = hashlib.blake2b(f"{self._name}:{self._reader.count}".encode(), digest_size=12)
        return f"call_{made.hexdigest()}"

    def _send(self, char: str) -> None:
        if self._is_ended:
            return
        try:
            self._steps.send(char)
        except StopIteration:
            self._is_ended = True

    def _answer(self) -> Generator[None, str, None]:
        """Read the whole answer."""
        markers, calls = self._parsing.markers, self._parsing.calls
        before = _Kind.TEXT
        if self._parsing.thinks and markers is not None:
            before = yield from self._think(markers)
        while True:
            at_begin = () if self._has_begun else self._at_begin
            found = yield from self._until((*self._openers, *at_begin), before=before)
            if not found:
                return
            if found in self._parsing.silent:
                continue
            if markers is not None and found == markers.begin:
                before = yield from self._think(markers)
            else:
                assert calls is not None
                before = yield from self._read_calls(calls, found)
            if self.is_over:
                return

    def _think(self, markers: Markers) -> Generator[None, str, _Kind]:
        self.is_thinking = self._has_begun = True
        yield from self._until((markers.end,), kind=_Kind.THOUGHT, before=_Kind.THOUGHT)
        self.is_thinking = False
        return _Kind.THOUGHT

    def _read_calls(self, calls: CallFormat, opener: str) -> Generator[None, str, _Kind]:
        """Read the calls behind `opener`; return what they were."""
        reader, known = self._reader, self._reader.count
        reader.raw = self._space
        if opener in calls.begins:
            reader.put_back(opener)
            opener = ""
        else:
            reader.raw += opener
        self.is_calling = True
        try:
            yield from read_calls(reader, calls, opener)
        except MalformedError:
            if not self._is_cut and (reader.raw.strip() or reader.count == known):
                self._tell(_Kind.TEXT, reader.raw)
                known = reader.count
            reader.is_over = self._parsing.once and reader.count > 0
        self.is_calling = False
        return _Kind.CALLS if reader.count > known else _Kind.TEXT

    def _until(self, openers: tuple[str, ...], *, kind: _Kind = _Kind.TEXT, before: _Kind) -> Generator[None, str, str]:
        """Tell what comes before the first of `openers` and return that, "" at the end.

        White space between parts of different kinds is dropped, so it is held back; `before` is what came before.
        """
        space = held = ""
        has_told = False
        while True:
            self._at_rest = has_told and kind is _Kind.TEXT and not space and not held
            char = yield from self._reader.skip()
            self._at_rest = False
            if not char:
                if self._is_cut and len(held) >= _LEAST_BEGUN:
                    return ""
                if held or has_told or before is _Kind.TEXT:
                    self._tell(kind, space + held)
                return ""
            held += char
            while held and not any(opener.startswith(held) for opener in openers):
                first, held = held[0], held[1:]
                if first in SPACE:
                    space += first
                    continue
                is_first = not has_told and before is _Kind.THOUGHT
                self._tell(kind, first if is_first else space + first)
                space, has_told = "", True
                if kind is _Kind.TEXT:  # thought, and calls without an opener, stand at the beginning only
                    openers = self._openers
            if held in openers:
                self._space = "" if before is _Kind.THOUGHT and not has_told else space
                return held


def _told(kind: _Kind, pieces: list[Any]) -> Told:
    if kind is _Kind.TEXT:
        return Told("".join(pieces))
    if kind is _Kind.THOUGHT:
        return Told(reasoning="".join(pieces))
    return Told(calls=tuple(_joined([*run]) for _, run in groupby(pieces, key=attrgetter("index"))))


def _joined(pieces: list[CallPiece]) -> CallPiece:
    """Return the pieces of one call as one."""
    return pieces[0]._replace(arguments="".join(piece.arguments for piece in pieces))
