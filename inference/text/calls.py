"""The formats in which models write calls of functions, read character by character as they come.

    hermes    <tool_call>{"name": "f", "arguments": {…}}</tool_call>   Hermes, Qwen; SmolLM with a list of such objects
    llama3    {"name": "f", "parameters": {…}}; {…}                    as the whole answer, or behind <|python_tag|>
    mistral   [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]         or [TOOL_CALLS]f[ARGS]{…}, once for each call

A reader is a generator that is sent one character at a time, "" at the end, so that what it finds can't depend on how
the text was cut. It raises `MalformedError` where the text is no call; what it has already told stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from inference.types import CallPiece

Read = Generator[None, str, None]
Got = Generator[None, str, str]

_SPACE = " \t\r\n"
_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})
_CLOSERS = {"{": "}", "[": "]"}
_BARE = frozenset("0123456789+-.eEtrufalsn,:" + _SPACE)  # what stands outside of strings and brackets
_MOST_NAME = 256


class MalformedError(Exception):
    """The text isn't a call of a function that there is."""


class CallReader:
    """The characters behind an opener, and the calls that they are.

    `tell` gets the pieces of calls of the functions `names`, `identify` returns the id of the next call. `raw` is the
    text since the opener, or since the last call in it: what becomes text if it is no call. With `once` no second call
    is read: `is_over` is True behind the first.
    """

    def __init__(
        self, names: frozenset[str], identify: Callable[[], str], tell: Callable[[CallPiece], None], *, once: bool
    ) -> None:
        self.raw = ""
        self.is_over = False
        self.count = 0
        self._names = names
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

    def space(self) -> Got:
        """Take white space; return the character behind it, which stays."""
        while (char := (yield from self.peek())) and char in _SPACE:
            yield from self.take()
        return char

    def literal(self, text: str) -> Read:
        """Take exactly `text`."""
        for wanted in text:
            if (yield from self.peek()) != wanted:
                raise MalformedError
            yield from self.take()

    def string(self) -> Got:
        """Take a string in JSON; return what it says."""
        yield from self.literal('"')
        written = ['"']
        while True:
            char = yield from self.take()
            if not char:
                raise MalformedError
            written.append(_escaped(char))
            if char == '"':
                break
            if char == "\\":
                written.append((yield from self.take()))
        try:
            return str(json.loads("".join(written)))
        except ValueError:
            raise MalformedError from None

    # -- calls ----------------------------------------------------------------------------------------------------

    def object(self) -> Read:
        """Read a call that is an object with its name and its arguments, in any order."""
        yield from self.literal("{")
        name = early = ""
        known = self.count
        while (yield from self.space()) != "}":
            key = yield from self._key()
            if key == "name" and not name:
                name = yield from self.string()
                if name not in self._names:
                    raise MalformedError
            elif key == "arguments" and name and self.count == known:
                yield from self.arguments(name)
            else:
                value = yield from self._kept()
                early = value if key == "arguments" else early
            char = yield from self.space()
            if char == ",":
                yield from self.take()
            elif char != "}":
                raise MalformedError
        if not name:
            raise MalformedError
        yield from self.take()
        if self.count == known:
            text = _unpacked(early) if early else "{}"
            self._begin(name)
            self._grow(text)
        self._end()

    def objects(self) -> Read:
        """Read a list of such objects."""
        yield from self.literal("[")
        while (yield from self.space()) != "]":
            yield from self.object()
            if self.is_over:
                return
            if (yield from self.space()) == ",":
                yield from self.take()
        yield from self.take()
        self.raw = ""

    def arguments(self, name: str) -> Read:
        """Read the arguments of a call of `name`, which begins with them."""
        if (yield from self.peek()) == "{":
            self._begin(name)
            yield from self._value(self._grow)
            return
        text = _unpacked((yield from self._kept()))
        self._begin(name)
        self._grow(text)

    def bare(self) -> Read:
        """Read a call that is its name and then its arguments, with [ARGS] and perhaps a [CALL_ID] between them."""
        name = ""
        while (char := (yield from self.peek())) not in ("", "{", "["):
            if len(name) >= _MOST_NAME:
                raise MalformedError
            name += yield from self.take()
        name = name.strip()
        if name not in self._names:
            raise MalformedError
        if char == "[":
            yield from self.literal("[")
            if (yield from self.peek()) == "C":
                yield from self.literal("CALL_ID]")
                while (yield from self.peek()) not in ("", "["):
                    yield from self.take()
                yield from self.literal("[")
            yield from self.literal("ARGS]")
        yield from self.space()
        yield from self.arguments(name)
        self._end()

    def _begin(self, name: str) -> None:
        self.count += 1
        self.raw = ""
        self._tell(CallPiece(self._identify(), name, index=self.count - 1))

    def _grow(self, text: str) -> None:
        self.raw = ""
        self._tell(CallPiece(arguments=text, index=self.count - 1))

    def _end(self) -> None:
        self.raw = ""
        self.is_over = self._once

    def _key(self) -> Got:
        """Take a key of a call and the colon; return it, "arguments" by whichever name."""
        key = yield from self.string()
        if key not in _KEYS:
            raise MalformedError
        yield from self.space()
        yield from self.literal(":")
        yield from self.space()
        return "arguments" if key == "parameters" else key

    def _kept(self) -> Got:
        """Take a value in JSON; return it as it is written."""
        kept: list[str] = []
        yield from self._value(kept.append)
        return "".join(kept)

    def _value(self, tell: Callable[[str], None]) -> Read:
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

    def _written(self, tell: Callable[[str], None]) -> Read:
        tell('"')
        while True:
            char = yield from self.take()
            if not char:
                raise MalformedError
            if char == "\\":
                char += yield from self.take()
                tell(char)
                continue
            tell(_escaped(char))
            if char == '"':
                return


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char < " " else char


def _unpacked(text: str) -> str:
    """Return arguments as an object in JSON: they may be a string with that, or null.

    Raise `MalformedError` for anything else, and for such a string with half a character, which no message carries.
    """
    try:
        value = json.loads(text)
        if isinstance(value, str):
            value.encode()
            text, value = value, json.loads(value)
    except (ValueError, RecursionError):
        raise MalformedError from None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise MalformedError
    return text


def _hermes(reader: CallReader) -> Read:
    while char := (yield from reader.space()):
        if char == "<":
            yield from reader.take()
            if (yield from reader.peek()) == "/":
                yield from reader.literal("/tool_call>")
                return
            yield from reader.literal("tool_call>")  # the one before wasn't closed
            continue
        yield from reader.objects() if char == "[" else reader.object()
        if reader.is_over:
            return


def _llama3(reader: CallReader) -> Read:
    while True:
        yield from reader.space()
        yield from reader.object()
        if reader.is_over or (yield from reader.space()) != ";":
            return
        yield from reader.take()


def _mistral(reader: CallReader) -> Read:
    match (yield from reader.space()):
        case "[":
            yield from reader.objects()
        case "{":
            yield from reader.object()
        case _:
            yield from reader.bare()


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A format: calls stand behind one of the `openers`, or `begins` opens one at the very beginning of an answer.

    `marks` are the control tokens of which a reader needs the text.
    """

    name: str
    read: Callable[[CallReader], Read]
    openers: tuple[str, ...]
    begins: str = ""
    marks: tuple[str, ...] = ()


FORMATS: Mapping[str, CallFormat] = {
    found.name: found
    for found in (
        CallFormat("hermes", _hermes, ("<tool_call>",), marks=("<tool_call>", "</tool_call>")),
        CallFormat("llama3", _llama3, ("<|python_tag|>",), begins="{", marks=("<|python_tag|>",)),
        CallFormat("mistral", _mistral, ("[TOOL_CALLS]",), marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    )
}


def format_of(template: str) -> CallFormat | None:
    """Return the format in which a chat template has its model's calls written, None where it isn't one of these."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return FORMATS["mistral"]
    if "<tool_call>" in template:
        is_json = "arguments" in template and "<function=" not in template and "<arg_key>" not in template
        return FORMATS["hermes"] if is_json else None
    if "<|python_tag|>" in template or ('"parameters"' in template and "<|start_header_id|>" in template):
        return FORMATS["llama3"]
    return None
