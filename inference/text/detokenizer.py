"""Token ids to text, piece by piece: each piece is whole characters, and the pieces together are the whole text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
HOLD = 8  # a character is at most four byte tokens; a longer run of replacement characters is what the model meant
TAIL = 6  # tokens of the prompt that decide whether the first word starts with a space


class Detokenizer:
    """Turns one sequence's tokens into text as they come.

    Two offsets into the ids: text up to `read` was given out; decoding starts at `prefix`, a little before, because
    how a token reads depends on its left neighbours.
    """

    __slots__ = ("_decode", "_ids", "_prefix", "_read")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(prompt[-TAIL:])
        self._prefix = 0
        self._read = len(self._ids)

    def push(self, token: int) -> str:
        """Return the text that `token` completes: empty while a character is still in parts."""
        self._ids.append(token)
        before = self._decode(self._ids[self._prefix : self._read])
        text = self._decode(self._ids[self._prefix :])
        held = len(self._ids) - self._read
        if len(text) <= len(before) or (text.endswith(REPLACEMENT) and held < HOLD):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        if self._prefix > 1024:
            # Long answers: drop the ids that are no longer looked at, so that memory stays small.
            del self._ids[: self._prefix]
            self._read -= self._prefix
            self._prefix = 0
        return text[len(before) :]

    def finish(self) -> str:
        """Return the text that was held back; U+FFFD stands for a character that stayed incomplete."""
        before = self._decode(self._ids[self._prefix : self._read])
        text = self._decode(self._ids[self._prefix :])
        self._prefix = self._read = len(self._ids)
        return text[len(before) :]
