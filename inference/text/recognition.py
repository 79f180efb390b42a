"""The format of calls that a chat template writes: a chat with calls is rendered, and read as an answer is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from inference.errors import InvalidRequestError
from inference.messages import Message, ToolCall, ToolResult
from inference.text.answer import AnswerParser, Markers, Parsing
from inference.text.call_formats import FORMATS, CallFormat, shaped
from inference.text.call_writer import WRITABLE
from inference.text.parameter_kinds import kinds_of
from inference.text.tokenizer import Tokenizer
from inference.text.turns import Rendering
from inference.tools import Function, Tools

_SCHEMA = json.dumps({
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "A place."},
        "count": {"type": "integer", "description": "A number."},
        "more": {"type": "object", "description": "Anything.", "properties": {}},
    },
    "required": ["place"],
})  # fmt: skip
_FUNCTIONS = tuple(Function(name, "Finds something.", _SCHEMA) for name in ("find_first", "find_second"))
_KINDS = {function.name: kinds_of(function.parameters) for function in _FUNCTIONS}
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("find_first", {"place": "New York", "count": 7, "more": {"list": [1, "two"], "is": True}}),
    ("find_second", {"place": "Oslo"}),
)
_ASKED, _ANSWERED = "Where is the first one?", "The result number"
_IDENTIFY = tuple({found.identify: None for found in FORMATS.values()})


class Recognised(NamedTuple):
    """The format of a template's calls; with `is_single` the template takes one call in each turn, without `has_place`
    none.
    """

    calls: CallFormat
    is_single: bool = False
    has_place: bool = True


def recognised(tokenizer: Tokenizer, formats: Sequence[CallFormat]) -> Recognised | None:
    """Return which of `formats` the tokenizer's template writes: the calls that it renders are those that are read, and
    it renders their results. A template that has no place for calls knows the format whose marks its text or its
    vocabulary has. None where none is known.
    """
    if "tool_calls" not in tokenizer.template:
        return _told_as_text(tokenizer, formats)
    for count in (len(_CALLS), 1):
        for identify in _IDENTIFY:
            written = _written(tokenizer, Rendering(Tools(_FUNCTIONS), identify=identify), count)
            for calls in formats if written else ():
                is_whole = all(word in written for word in (*calls.end.split(), *calls.section[1].split()))
                if is_whole and calls.identify in {identify, None} and _read(written, calls) == list(_CALLS[:count]):
                    return Recognised(calls, is_single=count == 1)
    return None


def _told_as_text(tokenizer: Tokenizer, formats: Sequence[CallFormat]) -> Recognised | None:
    template = tokenizer.template
    for calls in formats:
        marks = shaped(f"{calls.first}{calls.end}{calls.section[1]}") if calls.body in WRITABLE else []
        is_known = bool(marks) and all(mark in template or tokenizer.control_ids((mark,)) for mark in marks)
        text = _written(tokenizer, Rendering(Tools(_FUNCTIONS), writes=calls), len(_CALLS)) if is_known else ""
        if text and _read(text, calls) == list(_CALLS):
            return Recognised(calls, has_place=False)
    return None


def _written(tokenizer: Tokenizer, rendering: Rendering, count: int) -> str:
    """Return what the template renders of `count` calls and their results, behind the header of the assistant's answer;
    empty where it refuses them or leaves results out.
    """
    asked = Message("user", (_ASKED,))
    calls = tuple(ToolCall(f"call{n:05}", name, json.dumps(given)) for n, (name, given) in enumerate(_CALLS[:count]))
    results = tuple(Message("tool", (ToolResult(call.id, (f"{_ANSWERED} {call.id}.",)),)) for call in calls)
    try:
        header = _behind(tokenizer, (asked,), rendering)
        chat = _behind(tokenizer, (asked, Message("assistant", calls), *results), rendering)
    except InvalidRequestError:
        return ""
    has_results = all(f"{_ANSWERED} {call.id}." in chat for call in calls)
    common = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(header, chat, strict=False)))
    if common != header:  # both go on with markers that may begin alike: what is common ends with a whole one
        common = common[: 1 + max(map(common.rfind, ">]\n"))]
    return chat[len(common) :] if has_results else ""


def _behind(tokenizer: Tokenizer, messages: Sequence[Message], rendering: Rendering) -> str:
    """Return what is rendered behind the first message."""
    return tokenizer.text(tokenizer.prompt(messages, rendering)).rpartition(_ASKED)[2]


def _read(text: str, calls: CallFormat) -> list[tuple[str, Any]]:
    markers = Markers(*calls.thought) if calls.thought is not None else None
    parser = AnswerParser(Parsing(markers, calls=calls, functions=_KINDS, silent=calls.silent), "probe")
    parser.push(text)
    parser.finish()
    pieces = [piece for told in parser.take() for piece in told.calls]
    found: list[tuple[str, Any]] = []
    for _, run in groupby(pieces, key=lambda piece: piece.index):
        first, *more = run
        try:
            found.append((first.name, json.loads("".join(piece.arguments for piece in (first, *more)))))
        except ValueError:
            return []
    return found
