"""Incremental detokenising: the pieces hold whole characters, and together they are the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
MAX_HELD = 8  # tokens held back: more than a character has, so U+FFFD that stands before its last ones is real text
LONGEST_BEGUN = 3  # tokens of a character that lacks one
PROMPT_TAIL = 6  # tokens of the prompt that are decoded with the first ones, for their leading space


class Detokenizer:
    """Turns one sequence's tokens into text as they come.

    The text of the ids before offset `_read` has been returned, and ends with a whole character. Decoding begins at
    `_prefix`, some ids earlier, because the text of a token depends on those before it.
    """

    __slots__ = ("_decode", "_ids", "_prefix", "_read")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(prompt[-PROMPT_TAIL:])
        self._prefix = 0
        self._read = len(self._ids)

    def push(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character is incomplete."""
        ids = self._ids
        ids.append(token)
        added = self._added(len(ids))
        if added and not added.endswith(REPLACEMENT):
            self._prefix, self._read = self._read, len(ids)
            if self._prefix > 1024:
                # Drop ids that are decoded no more: long answers would keep them all.
                del ids[: self._prefix]
                self._read -= self._prefix
                self._prefix = 0
            return added
        if len(ids) - self._read < MAX_HELD:
            return ""
        # What was held is no character, or nothing at all: it goes, but for one that its last tokens may have begun.
        for begun in range(1, LONGEST_BEGUN + 1) if added else ():
            text = self._added(len(ids) - begun)
            if text + self._decode(ids[-begun:]) == added:
                del ids[self._read : -begun]
                return text
        del ids[self._read :]
        return added

    def finish(self) -> str:
        """Return the text that was held back, with U+FFFD for a character that stayed incomplete."""
        added = self._added(len(self._ids))
        self._prefix = self._read = len(self._ids)
        return added

    def _added(self, end: int) -> str:
        """Return the text of the ids that were held back, before offset `end`."""
        before, text = self._decode(self._ids[self._prefix : self._read]), self._decode(self._ids[self._prefix : end])
        if not text.startswith(before):  # they complete a character that the prompt began
            before = before.rstrip(REPLACEMENT)
        # Where they change the text before them, as bytes after bytes may that are no character, they are taken alone.
        return text[len(before) :] if text.startswith(before) else self._decode(self._ids[self._read : end])
