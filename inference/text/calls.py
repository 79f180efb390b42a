"""Reading the calls of an answer in the format of its model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from inference.text.call_formats import ID, Body, CallFormat
from inference.text.call_reader import CallReader, MalformedError, Read
from inference.text.call_values import parameters, python_arguments

_ARGUMENTS = frozenset({"arguments", "parameters"})
_OTHER_KEYS = frozenset({"name", "type", "id", "tool_call_id"})
_MOST_BETWEEN = 128  # characters between a name and its arguments


def read_calls(reader: CallReader, calls: CallFormat, opener: str) -> Read:
    """Read the calls behind `opener`, which is empty at the very beginning of an answer."""
    yield from reader.literal(calls.first.partition(opener)[2] if opener else calls.first)
    if calls.body is Body.OBJECTS:
        yield from _objects(reader, calls)
    else:
        yield from _named(reader, calls)


def _objects(reader: CallReader, calls: CallFormat) -> Read:
    between, known = calls.between.strip(), reader.count
    while char := (yield from reader.space()):
        if char == "[":
            yield from _listed(reader, calls)
        elif char == "{":
            yield from _object(reader, calls)
        elif char == between:
            yield from reader.take()
        elif calls.end:
            # Where a call's end is missing, the next one begins.
            if (yield from reader.literal(calls.end, calls.begin)) == calls.end:
                return
        elif reader.count > known:
            return
        else:
            raise MalformedError
        if reader.is_over:
            return


def _listed(reader: CallReader, calls: CallFormat) -> Read:
    yield from reader.literal("[")
    while (yield from reader.space()) != "]":
        yield from _object(reader, calls)
        if reader.is_over:
            return
        if (yield from reader.space()) == ",":
            yield from reader.take()
    yield from reader.take()
    reader.raw = ""


def _object(reader: CallReader, calls: CallFormat) -> Read:
    """Read a call that is an object with its name and its arguments, in any order."""
    yield from reader.literal("{")
    name = early = ""
    known = reader.count
    while (yield from reader.space()) != "}":
        key = yield from reader.string()
        yield from reader.literal(":")
        yield from reader.space()
        if not name and key == calls.keys[0]:
            name = _known(reader, (yield from reader.string()))
        elif not name and not calls.keys[0]:
            name = _known(reader, key)
            yield from _arguments(reader, name)
        elif key in _ARGUMENTS and name and reader.count == known:
            yield from _arguments(reader, name)
        elif key in {*_ARGUMENTS, *_OTHER_KEYS}:
            value = yield from reader.kept()
            early = value if key in _ARGUMENTS else early
        else:
            raise MalformedError
        char = yield from reader.space()
        if char == ",":
            yield from reader.take()
        elif char != "}":
            raise MalformedError
    if not name:
        raise MalformedError
    yield from reader.take()
    if reader.count == known:
        text = _unpacked(early) if early else "{}"
        reader.begin(name)
        reader.grow(text)
    reader.end()


def _known(reader: CallReader, name: str) -> str:
    if name not in reader.functions:
        raise MalformedError
    return name


def _arguments(reader: CallReader, name: str) -> Read:
    """Read the arguments of a call of `name`, which begins with them."""
    if (yield from reader.peek()) == "{":
        reader.begin(name)
        yield from reader.value(reader.grow)
        return
    text = _unpacked((yield from reader.kept()))
    reader.begin(name)
    reader.grow(text)


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


def _named(reader: CallReader, calls: CallFormat) -> Read:
    """Read calls that tell the name and then the arguments."""
    has_section, end = bool(calls.section[0]), calls.section[1]
    is_in = not has_section  # the opener began the call itself
    while True:
        if not is_in:
            char = yield from reader.space()
            if char and char == calls.between.strip():
                yield from reader.take()
                char = yield from reader.space()
            begin, _, rest = calls.begin.partition(ID)
            following = [begin, end] if begin else [end] if char == end.strip()[0] else [""]
            if (yield from reader.literal(*following)) == end:
                return
            if rest:
                yield from reader.before(rest[0])
                yield from reader.literal(rest)
        name = yield from reader.name()
        yield from _READ[calls.body](reader, calls, name)
        reader.end()
        if reader.is_over or not has_section:
            return
        is_in = False


def _json(reader: CallReader, calls: CallFormat, name: str) -> Read:
    """Read arguments in JSON; what stands before them varies, as a call's id does."""
    for _ in range(_MOST_BETWEEN):
        if (yield from reader.peek()) == "{":
            break
        yield from reader.some()
    yield from _arguments(reader, name)
    reader.end()
    yield from reader.literal(calls.end)


_READ: Mapping[Body, Callable[[CallReader, CallFormat, str], Read]] = {
    Body.JSON: _json,
    Body.PARAMETERS: parameters,
    Body.PYTHON: python_arguments,
    Body.BARE_KEYS: python_arguments,
}
