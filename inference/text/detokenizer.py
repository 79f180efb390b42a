"""Incremental detokenising: the pieces hold whole characters, and together they are the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
MAX_HELD = 8  # tokens held back: a character has four byte tokens at most, so U+FFFD after more is real text
PROMPT_TAIL = 6  # tokens of the prompt that are decoded with the first ones, for their leading space


class Detokenizer:
    """Turns one sequence's tokens into text as they come.

    The text of the ids before offset `_read` has been returned. Decoding begins at `_prefix`, some ids earlier, because
    the text of a token depends on those before it.
    """

    __slots__ = ("_decode", "_ids", "_prefix", "_read")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(prompt[-PROMPT_TAIL:])
        self._prefix = 0
        self._read = len(self._ids)

    def push(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character is incomplete."""
        self._ids.append(token)
        before = self._decode(self._ids[self._prefix : self._read])
        text = self._decode(self._ids[self._prefix :])
        held = len(self._ids) - self._read
        if len(text) <= len(before) or (text.endswith(REPLACEMENT) and held < MAX_HELD):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        if self._prefix > 1024:
            # Drop ids that are decoded no more: long answers would keep them all.
            del self._ids[: self._prefix]
            self._read -= self._prefix
            self._prefix = 0
        return text[len(before) :]

    def finish(self) -> str:
        """Return the text that was held back, with U+FFFD for a character that stayed incomplete."""
        before = self._decode(self._ids[self._prefix : self._read])
        text = self._decode(self._ids[self._prefix :])
        self._prefix = self._read = len(self._ids)
        return text[len(before) :]
