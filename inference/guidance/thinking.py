"""A thought before a guided answer, or of bounded length: what a model may write until its answer begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from inference.core.grammar import Grammar, Matcher


@dataclass(frozen=True, slots=True)
class Thought:
    """How a thought stands in the tokens: between `begin` and `end`, the model's markers.

    With `is_open` it has begun in the prompt, else one may begin the answer. Behind `budget` tokens the end marker is
    forced (None: never); with 0 none begins. `ends` would end the whole answer. `merged` are tokens that write the last
    of a marker of several tokens and more, such as `>` with a line break: where that is due they are ruled out, so that
    a marker is always its own tokens. `blank` are tokens of white space alone, which begin no answer: a thought may
    stand behind them.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    is_open: bool
    budget: int | None
    ends: frozenset[int]
    vocabulary: int
    merged: frozenset[int] = frozenset()
    blank: frozenset[int] = frozenset()

    @property
    def may_begin(self) -> bool:
        """Whether a thought may begin in the answer."""
        return self.budget != 0

    def merged_with(self, marker: tuple[int, ...]) -> frozenset[int]:
        """The tokens that are ruled out where the last of `marker` is due."""
        return self.merged if len(marker) > 1 else frozenset()


@dataclass(frozen=True, slots=True)
class ThinkingGrammar:
    """A thought, and then an answer of the grammar `inner`, or any (None)."""

    thought: Thought
    inner: Grammar | None

    @property
    def not_enforced(self) -> tuple[str, ...]:
        return () if self.inner is None else self.inner.not_enforced

    @property
    def is_thought(self) -> bool:
        return self.inner is None

    def begin(self) -> Matcher:
        return _ThinkingMatcher(self.thought, self.inner)


class _State(Enum):
    BEGIN = auto()  # nothing was written but white space and the first tokens of the begin marker
    THOUGHT = auto()
    END = auto()  # the end marker is forced
    ANSWER = auto()


class _ThinkingMatcher:
    def __init__(self, thought: Thought, inner: Grammar | None) -> None:
        self._thought = thought
        self._grammar = inner
        self._inner = inner.begin() if inner is not None else None
        self._state = _State.THOUGHT if thought.is_open else _State.BEGIN
        self._place = 0  # in the marker that is being written
        self._unread: list[int] = []  # tokens of the begin marker with which no answer of `inner` begins
        self._count = 0
        self._last: tuple[int, ...] = ()  # as many tokens as the end marker has
        self._any = b"\xff" * (4 * -(-thought.vocabulary // 32))
        self._check_budget()

    def mask(self) -> bytes:
        match self._state:
            case _State.BEGIN:
                return self._first()
            case _State.END:
                return _only(self._any, (self._thought.end[self._place],))
            case _State.THOUGHT:
                return self._thinking()
            case _:
                return self._answer()

    def accept(self, token: int) -> None:
        thought = self._thought
        match self._state:
            case _State.BEGIN:
                self._accept_first(token)
            case _State.THOUGHT:
                self._count += 1
                self._last = (*self._last, token)[-len(thought.end) :]
                if self._last == thought.end:
                    self._state = _State.ANSWER
                else:
                    self._check_budget()
            case _State.END:
                self._place += 1
                if self._place == len(thought.end):
                    self._state = _State.ANSWER
            case _State.ANSWER:
                if self._inner is not None:
                    self._inner.accept(token)

    def _first(self) -> bytes:
        """Return the tokens permitted in BEGIN: the answer's, with the marker's next token or without its last."""
        thought, place = self._thought, self._place
        mask, token = self._answer() if not self._unread else bytes(len(self._any)), thought.begin[place]
        rest = _without(mask, {token, *thought.merged_with(thought.begin)}) if place == len(thought.begin) - 1 else mask
        if thought.may_begin:
            return _with(rest, token)
        return rest if any(rest) else mask  # an answer that can't be but the marker's text is one

    def _accept_first(self, token: int) -> None:
        """Go on in BEGIN: the marker and the answer are followed side by side until they part."""
        begin, may_begin = self._thought.begin, self._thought.may_begin
        is_marker, is_last = token == begin[self._place], self._place == len(begin) - 1
        if is_marker and is_last and may_begin:
            self._state = _State.THOUGHT
            self._inner = self._grammar.begin() if self._grammar is not None else None
            self._check_budget()
            return
        if is_marker and not is_last:
            self._place += 1
        elif self._place or token not in self._thought.blank:
            self._state = _State.ANSWER
        if is_marker and may_begin and (self._unread or not _permits(self._answer(), token)):
            self._unread.append(token)
        elif self._inner is not None:
            for each in (*self._unread, token):
                self._inner.accept(each)

    def _thinking(self) -> bytes:
        """Return the tokens permitted in THOUGHT."""
        thought, mask = self._thought, self._any
        if self._inner is not None:  # an answer that is held to something can't end before it has begun
            mask = _without(mask, thought.ends)
        is_last = self._last[1 - len(thought.end) :] == thought.end[:-1]
        return _without(mask, thought.merged_with(thought.end)) if is_last else mask

    def _answer(self) -> bytes:
        return self._any if self._inner is None else self._inner.mask()

    def _check_budget(self) -> None:
        budget = self._thought.budget
        if self._state is _State.THOUGHT and budget is not None and self._count >= budget:
            self._state, self._place = _State.END, 0


def _only(like: bytes, tokens: Sequence[int]) -> bytes:
    mask = bytearray(len(like))
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


def _with(mask: bytes, token: int) -> bytes:
    changed = bytearray(mask)
    changed[token // 8] |= 1 << token % 8
    return bytes(changed)


def _permits(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def _without(mask: bytes, tokens: Collection[int]) -> bytes:
    changed = bytearray(mask)
    for token in tokens:
        if token // 8 < len(mask):
            changed[token // 8] &= 0xFF ^ 1 << token % 8
    return bytes(changed)
