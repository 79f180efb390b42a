"""A call's characters, read one by one as they come, and the pieces of calls that they are.

What reads is a generator that is sent one character at a time, "" at the end, so that what it finds can't depend on how
the text was cut. It raises `MalformedError` where the text is no call; what it has already told stays.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Generator, Mapping

from inference.types import CallPiece

Read = Generator[None, str, None]
Got = Generator[None, str, str]
Kinds = Mapping[str, frozenset[str]]  # the types in JSON that each parameter of a function may have

SPACE = " \t\r\n"
_NAME = frozenset(f"{string.ascii_letters}{string.digits}_.-")  # the characters of a function's name
_CLOSERS = {"{": "}", "[": "]"}
_BARE = frozenset("0123456789+-.eEtrufalsn,:" + SPACE)  # what stands outside of strings and brackets
_MOST_NAME = 256


class MalformedError(Exception):
    """The text isn't a call of a function that there is."""


class CallReader:
    """The characters behind an opener, and the calls that they are.

    `tell` gets the pieces of calls of the `functions`, of whose parameters it has the types; `identify` returns the id
    of the next call. `raw` is the text since the opener, or since the last call in it: what becomes text if it is no
    call. With `once` no second call is read: `is_over` is True behind the first.
    """

    def __init__(
        self,
        functions: Mapping[str, Kinds],
        identify: Callable[[], str],
        tell: Callable[[CallPiece], None],
        *,
        once: bool,
    ) -> None:
        self.raw = ""
        self.is_over = False
        self.count = 0
        self.functions = functions
        self._identify = identify
        self._tell = tell
        self._once = once
        self._ahead: str | None = None

    # -- characters -----------------------------------------------------------------------------------------------

    def put_back(self, char: str) -> None:
        """Let `char` be the next one."""
        self._ahead = char

    def peek(self) -> Got:
        """Return the next character, "" at the end, and leave it where it is."""
        if self._ahead is None:
            self._ahead = yield
        return self._ahead

    def skip(self) -> Got:
        """Return the next character, "" at the end, without noting it in `raw`."""
        char = yield from self.peek()
        if char:
            self._ahead = None
        return char

    def take(self) -> Got:
        """Return the next character, "" at the end."""
        char = yield from self.skip()
        self.raw += char
        return char

    def some(self) -> Got:
        """Return the next character, which there has to be."""
        char = yield from self.take()
        if not char:
            raise MalformedError
        return char

    def space(self) -> Got:
        """Take white space; return the character behind it, which stays."""
        while (char := (yield from self.peek())) and char in SPACE:
            yield from self.take()
        return char

    def literal(self, *texts: str) -> Got:
        """Take one of `texts`, whatever white space stands in it; return which."""
        left = {text: "".join(text.split()) for text in texts}
        place = 0
        while True:
            for text, wanted in left.items():
                if len(wanted) == place:
                    return text
            char = yield from self.space()
            left = {text: wanted for text, wanted in left.items() if wanted[place] == char}
            if not left:
                raise MalformedError
            yield from self.take()
            place += 1

    def before(self, ends: str) -> Got:
        """Take what stands before one of the characters `ends`; return it."""
        text = ""
        while (char := (yield from self.peek())) not in ends:
            if len(text) >= _MOST_NAME:
                raise MalformedError
            text += yield from self.take()
        if not char:
            raise MalformedError
        return text

    def until(self, markers: tuple[str, ...], tell: Callable[[str], None]) -> Read:
        """Tell what stands before the first of `markers`, and take that."""
        held = ""
        while held not in markers:
            held += yield from self.some()
            while not any(marker.startswith(held) for marker in markers):
                tell(held[0])
                held = held[1:]

    def string(self) -> Got:
        """Take a string in JSON; return what it says."""
        yield from self.literal('"')
        written = ['"']
        while True:
            char = yield from self.some()
            written.append(escaped(char))
            if char == '"':
                break
            if char == "\\":
                written.append((yield from self.take()))
        try:
            return str(json.loads("".join(written)))
        except ValueError:
            raise MalformedError from None

    def value(self, tell: Callable[[str], None]) -> Read:
        """Tell a value in JSON as it is written; control characters in its strings are escaped."""
        closers: list[str] = []
        is_bare = False
        while True:
            char = yield from self.peek()
            if not char:
                raise MalformedError
            if is_bare and not closers and char in ",}]":
                return  # the end of a number or a word
            yield from self.take()
            if char == '"':
                yield from self._written(tell)
            elif char in _CLOSERS:
                closers.append(_CLOSERS[char])
                tell(char)
            elif closers and char == closers[-1]:
                closers.pop()
                tell(char)
            elif char in _BARE:
                is_bare = not closers
                tell(char)
                continue
            else:
                raise MalformedError
            if not closers:
                return

    def kept(self) -> Got:
        """Take a value in JSON; return it as it is written."""
        kept: list[str] = []
        yield from self.value(kept.append)
        return "".join(kept)

    def _written(self, tell: Callable[[str], None]) -> Read:
        tell('"')
        while True:
            char = yield from self.some()
            if char == "\\":
                char += yield from self.take()
                tell(char)
                continue
            tell(escaped(char))
            if char == '"':
                return

    # -- calls ----------------------------------------------------------------------------------------------------

    def name(self) -> Got:
        """Take the name of a function that there is."""
        yield from self.space()
        name = ""
        while (yield from self.peek()) in _NAME:
            if len(name) >= _MOST_NAME:
                raise MalformedError
            name += yield from self.take()
        if name not in self.functions:
            raise MalformedError
        return name

    def begin(self, name: str) -> None:
        """Tell that a call of the function `name` begins."""
        self.count += 1
        self.raw = ""
        self._tell(CallPiece(self._identify(), name, index=self.count - 1))

    def grow(self, text: str) -> None:
        """Tell more of the call's arguments."""
        self.raw = ""
        self._tell(CallPiece(arguments=text, index=self.count - 1))

    def end(self) -> None:
        """Note that the call is read."""
        self.raw = ""
        self.is_over = self._once


def escaped(text: str) -> str:
    """Return a character as it stands in a string in JSON that is written there already."""
    return json.dumps(text)[1:-1] if text < " " else text
