"""A compiled grammar as the engine sees it: the tokens that may come next, as tokens come."""

from __future__ import annotations

from typing import Protocol


class GrammarError(Exception):
    """A matcher can't go on: a token that its grammar doesn't permit, or a step beyond its limits."""


class Matcher(Protocol):
    """One answer on its way through a grammar. Not thread-safe."""

    def mask(self) -> bytes:
        """Return which tokens may come next: bit i % 8 of byte i // 8 for token i. Raise `GrammarError`.

        The tokens that end an answer are among them where it may end, and alone where nothing else may follow.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on behind `token`. Raise `GrammarError`, after which it raises at each call."""
        ...


class Grammar(Protocol):
    """A compiled guidance; any thread may begin a matcher."""

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The keywords of its schemas that it does without."""
        ...

    @property
    def is_thought(self) -> bool:
        """Whether it holds nothing but a thought to its bound."""
        ...

    def begin(self) -> Matcher:
        """Return a matcher of an answer without tokens."""
        ...
