"""Arguments that are not told as an object in JSON, read and told as one."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from inference.text.call_formats import STRING, Body, CallFormat
from inference.text.call_reader import SPACE, CallReader, MalformedError, Read
from inference.text.parameter_kinds import kind_of

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_MOST_DEEP = 32
_LONGEST_LITERAL = 65_536
_ESCAPES = frozenset('"\\/bfnrt')
_CODES = {"x": 2, "u": 4}  # digits of a character's number
_HEXADECIMAL = re.compile("[0-9a-fA-F]+")


def parameters(reader: CallReader, calls: CallFormat, name: str) -> Read:
    """Read arguments of which each stands between markers: a text as it is, anything else in JSON."""
    before, middle, behind = calls.parameter
    kinds = reader.functions[name]
    yield from reader.literal(calls.middle)
    reader.begin(name)
    start = "{"
    # A line break of the format's belongs to no value; any other does.
    marker = behind.strip()
    markers = (marker, f"\n{marker}") if behind.startswith("\n") else (marker,)
    end, *more = calls.end.split()
    while (yield from reader.literal(before, end)) == before:
        key = yield from reader.before(middle[0])
        told = kinds.get(key, frozenset[str]())
        head, _, tail = middle.partition(STRING)
        yield from reader.literal(head)
        if tail:
            told = frozenset({"string"}) if (yield from reader.before(tail[0])) == "true" else told - {"string"}
            yield from reader.literal(tail)
        if middle.endswith("\n") and (yield from reader.peek()) == "\n":
            yield from reader.take()
        reader.grow(f"{start}{json.dumps(key, ensure_ascii=False)}: ")
        start = ", "
        if told == {"string"}:
            reader.grow('"')
            yield from reader.until(markers, lambda char: reader.grow(_quoted(char)))
            reader.grow('"')
        else:
            written: list[str] = []
            yield from reader.until(markers, written.append)
            reader.grow(_value("".join(written), told, is_text=not tail))
    reader.grow("}" if start == ", " else "{}")
    yield from reader.literal("".join(more))


def _value(text: str, kinds: frozenset[str], *, is_text: bool) -> str:
    """Return in JSON the value that `text` tells, of one of `kinds` (empty: any)."""
    value, written = _parsed(text)
    kind = kind_of(value)
    fits = kind != "string" and (not kinds or kind in kinds or (kind == "integer" and "number" in kinds))
    if fits or (kind == "string" and not is_text and written):
        return written
    return json.dumps(text, ensure_ascii=False)


def _parsed(text: str) -> tuple[Any, str]:
    """Return the value that `text` is in JSON or Python, and it in JSON; the text itself where it is neither."""
    try:
        return json.loads(text, parse_constant=_refused), text.strip()
    except (ValueError, RecursionError):
        pass
    stripped = text.strip()
    if stripped in _WORDS:
        return json.loads(_WORDS[stripped]), _WORDS[stripped]
    if stripped[:1] in "[{" and 0 < len(stripped) <= _LONGEST_LITERAL:
        try:
            value = ast.literal_eval(stripped)
            written = json.dumps(value, ensure_ascii=False, allow_nan=False)
            written.encode()  # half a character is none
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        else:
            return value, written
    return text, ""


def _refused(name: str) -> Any:
    raise ValueError(name)


def python_arguments(reader: CallReader, calls: CallFormat, name: str) -> Read:
    """Read arguments with bare keys: Python's keywords, or an object with quotes of its own."""
    yield from reader.literal(calls.middle)
    reader.begin(name)
    yield from _pairs(reader, calls, calls.end[0], 0)
    yield from reader.literal(calls.end[1:])


def _pairs(reader: CallReader, calls: CallFormat, closer: str, depth: int) -> Read:
    """Tell keys and values up to `closer` as an object in JSON."""
    reader.grow("{")
    is_first = True
    while (char := (yield from reader.space())) != closer:
        if not is_first:
            yield from reader.literal(",")
            char = yield from reader.space()
            if char == closer:
                break
        reader.grow("" if is_first else ", ")
        is_first = False
        quotes = _quotes(calls)
        if any(quote.startswith(char) for quote in quotes):
            yield from _text(reader, quotes)
        else:
            key = yield from reader.before("=:" + SPACE)
            reader.grow(json.dumps(key, ensure_ascii=False))
        yield from reader.space()
        yield from reader.literal("=" if closer == ")" else ":")
        reader.grow(": ")
        yield from _told(reader, calls, depth + 1)
    yield from reader.take()
    reader.grow("}")


def _quotes(calls: CallFormat) -> tuple[str, ...]:
    return (calls.quote, '"') if calls.quote else ('"', "'")


def _told(reader: CallReader, calls: CallFormat, depth: int) -> Read:
    """Tell one value in JSON."""
    if depth > _MOST_DEEP:
        raise MalformedError
    char = yield from reader.space()
    quotes = _quotes(calls)
    if char and any(quote.startswith(char) for quote in quotes):
        yield from _text(reader, quotes)
    elif char == "{":
        yield from reader.take()
        yield from _pairs(reader, calls, "}", depth)
    elif char in {"[", "("}:
        yield from _items(reader, calls, "]" if char == "[" else ")", depth)
    else:
        word = yield from reader.before(",}])" + SPACE)
        try:
            json.loads(told := _WORDS.get(word, word), parse_constant=_refused)
        except ValueError:
            if calls.body is not Body.BARE_KEYS or not word:
                raise MalformedError from None
            told = json.dumps(word, ensure_ascii=False)
        reader.grow(told)


def _items(reader: CallReader, calls: CallFormat, closer: str, depth: int) -> Read:
    yield from reader.take()
    reader.grow("[")
    is_first = True
    while (yield from reader.space()) != closer:
        if not is_first:
            yield from reader.literal(",")
            if (yield from reader.space()) == closer:
                break
            reader.grow(", ")
        is_first = False
        yield from _told(reader, calls, depth + 1)
    yield from reader.take()
    reader.grow("]")


def _text(reader: CallReader, quotes: tuple[str, ...]) -> Read:
    """Tell a text that stands between two of one of `quotes`."""
    quote = yield from reader.literal(*quotes)
    reader.grow('"')
    if len(quote) > 1:
        yield from reader.until((quote,), lambda char: reader.grow(_quoted(char)))
    else:
        while (char := (yield from reader.some())) != quote:
            if char == "\\":
                yield from _escape(reader)
            else:
                reader.grow(_quoted(char))
    reader.grow('"')


def _escape(reader: CallReader) -> Read:
    """Tell what a backslash in a text of Python means."""
    char = yield from reader.some()
    if digits := _CODES.get(char):
        code = ""
        for _ in range(digits):
            code += yield from reader.some()
        if not _HEXADECIMAL.fullmatch(code):
            raise MalformedError
        reader.grow(f"\\u{code:0>4}")
    elif char in _ESCAPES:
        reader.grow(f"\\{char}")
    else:
        reader.grow("'" if char == "'" else f"\\\\{_quoted(char)}")


def _quoted(char: str) -> str:
    return json.dumps(char, ensure_ascii=False)[1:-1]
