"""A thought before a guided answer, or of bounded length: what a model may write until its answer begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from inference.core.grammar import Grammar, Matcher


@dataclass(frozen=True, slots=True)
class Thought:
    """How a thought stands in the tokens: between `begin` and `end`, the model's markers.

    With `is_open` it has begun in the prompt, else one may begin the answer if its marker is one token. Behind `budget`
    tokens the end marker is forced (None: never). `ends` would end the whole answer.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    is_open: bool
    budget: int | None
    ends: frozenset[int]
    vocabulary: int

    @property
    def may_begin(self) -> bool:
        """Whether a thought may begin in the answer."""
        return self.budget != 0 and len(self.begin) == 1


@dataclass(frozen=True, slots=True)
class ThinkingGrammar:
    """A thought, and then an answer of the grammar `inner`, or any (None)."""

    thought: Thought
    inner: Grammar | None

    @property
    def is_thought(self) -> bool:
        return self.inner is None

    def begin(self) -> Matcher:
        return _ThinkingMatcher(self.thought, self.inner.begin() if self.inner is not None else None)


class _State(Enum):
    BEGIN = auto()  # nothing was written
    THOUGHT = auto()
    END = auto()  # the end marker is forced
    ANSWER = auto()


class _ThinkingMatcher:
    def __init__(self, thought: Thought, inner: Matcher | None) -> None:
        self._thought = thought
        self._inner = inner
        self._state = _State.THOUGHT if thought.is_open else _State.BEGIN
        self._place = 0  # in the marker that is being written
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
                # An answer that is held to something can't end before it has begun.
                return self._any if self._inner is None else _without(self._any, self._thought.ends)
            case _:
                return self._any if self._inner is None else self._inner.mask()

    def accept(self, token: int) -> None:
        thought = self._thought
        match self._state:
            case _State.BEGIN:
                if thought.may_begin and (token,) == thought.begin:
                    self._state = _State.THOUGHT
                    self._check_budget()
                else:
                    self._state = _State.ANSWER
                    self.accept(token)
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
        begin, may_begin = self._thought.begin, self._thought.may_begin
        if self._inner is not None:
            return _with(self._inner.mask(), begin[0]) if may_begin else self._inner.mask()
        return self._any if may_begin or len(begin) > 1 else _without(self._any, begin)

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


def _without(mask: bytes, tokens: frozenset[int] | tuple[int, ...]) -> bytes:
    changed = bytearray(mask)
    for token in tokens:
        changed[token // 8] &= 0xFF ^ 1 << token % 8
    return bytes(changed)
