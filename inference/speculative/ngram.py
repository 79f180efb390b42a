"""Drafts from the text itself: what followed the last few tokens when they stood there before.

Prompt-lookup decoding (Saxena, 2023): answers repeat names, code and quotations of their prompt, and themselves.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from itertools import takewhile
from weakref import WeakKeyDictionary

from inference.core.sequence import Sequence

LENGTHS = (4, 3, 2)  # of the n-grams that are looked up, the longest first
LEAST_ACCEPTANCE = 0.25  # below this share of accepted drafts a request proposes none for a while
MEMORY = 0.9  # how much of the mean acceptance stays when a proposal is judged
FIRST = 2  # drafts of a sequence's first proposal, which cost hardly more than none
REST = 48  # tokens without drafts after a mean below LEAST_ACCEPTANCE


class NgramIndex:
    """Where each n-gram of one sequence's tokens stood last. `tokens` may only grow; each is indexed once."""

    __slots__ = ("_indexed", "_places", "_tokens")

    def __init__(self, tokens: Tokens[int]) -> None:
        self._tokens = tokens
        self._places: dict[tuple[int, ...], int] = {}  # the place behind the n-gram
        self._indexed = 1

    def continuation(self, count: int) -> tuple[int, ...]:
        """Return the `count` tokens that followed the latest earlier occurrence of the last n (of LENGTHS), or none.

        Where that occurrence reaches the end, the repetition goes on.
        """
        tokens, places, end = self._tokens, self._places, len(self._tokens)
        # An n-gram is indexed once a token stands behind it: the one at the end finds only earlier ones.
        for place in range(self._indexed, end):
            for length in LENGTHS:
                if length <= place:
                    places[tuple(tokens[place - length : place])] = place
        self._indexed = max(self._indexed, end)
        for length in LENGTHS:
            found = places.get(tuple(tokens[end - length :])) if length <= end else None
            if found is not None:
                period = end - found
                return tuple([tokens[found + i % period] for i in range(count)])
        return ()


class Drafter:
    """Proposes drafts for one sequence of `tokens`: more of them after those that were right, none for a while when too
    few turn out right.
    """

    __slots__ = ("_drafts", "_index", "_length", "_mean", "_place", "_rests_until", "_tokens")

    def __init__(self, tokens: Tokens[int]) -> None:
        self._tokens = tokens
        self._index = NgramIndex(tokens)
        self._length = FIRST
        self._mean = 0.5
        self._rests_until = 0
        self._place = 0  # where the last drafts were to stand
        self._drafts: tuple[int, ...] = ()

    def propose(self, count: int) -> tuple[int, ...]:
        """Return at most `count` tokens that may follow."""
        if self._drafts and len(self._tokens) > self._place:
            self._judge()
        self._drafts = ()
        if count > 0 and len(self._tokens) >= self._rests_until:
            self._place, self._drafts = len(self._tokens), self._index.continuation(min(count, self._length))
        return self._drafts

    def _judge(self) -> None:
        """Compare the last drafts with the tokens that now stand in their place."""
        stand = self._tokens[self._place : self._place + len(self._drafts)]
        pairs = zip(self._drafts, stand, strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # Wrong drafts cost time, the more the longer they are, so the length follows what was right.
        self._length = 2 * len(self._drafts) if right == len(self._drafts) else max(FIRST, right)
        self._mean = MEMORY * self._mean + (1 - MEMORY) * right / len(self._drafts)
        if self._mean < LEAST_ACCEPTANCE:
            self._rests_until = len(self._tokens) + REST
            self._mean = 0.5


class NgramProposer:
    """Proposes up to `most` drafts for a sequence, from its own tokens (`inference.core.rows.Propose`)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._drafters: WeakKeyDictionary[Sequence, Drafter] = WeakKeyDictionary()

    def __call__(self, seq: Sequence, count: int) -> tuple[int, ...]:
        drafter = self._drafters.get(seq)
        if drafter is None:
            drafter = self._drafters[seq] = Drafter(seq.tokens)
        return drafter.propose(min(count, self._most))
