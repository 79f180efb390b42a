"""What an answer has to be that must call functions, calls strict ones, or is JSON where it calls none: a grammar in
Lark around their schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidRequestError
from inference.guidance.library import WHITESPACE
from inference.text.calls import CallFormat
from inference.tools import Function, ToolMode, Tools
from inference.types import Guidance, GuidanceKind
from inference.validation import check_guidance_size

_JSON = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": WHITESPACE}
_ANY = '{"type":"object"}'


def guidance_of_tools(
    tools: Tools,
    calls: CallFormat,
    control: Mapping[str, int],
    *,
    has_bare_calls: bool,
    answer: Guidance | None = None,
) -> Guidance | None:
    """Return what holds an answer to `tools`, and one that calls none to `answer`: None where it may be anything.

    `control` are the ids of those of the format's marks that are control tokens. Where calls are required, the
    arguments are held to the schemas of all functions, else to those of strict ones. Text may stand before a call that
    isn't required, unless there is an `answer`. Raise `InvalidRequestError` for one that isn't JSON, and for schemas
    that together are too large, before any is read.
    """
    functions, is_required = tools.callable, tools.mode is ToolMode.REQUIRED
    if not functions:
        return answer
    if not (is_required or answer is not None or any(function.strict for function in functions)):
        return None
    answer = None if is_required else answer
    param = answer.param if answer is not None else tools.param if is_required else "tools"
    held = sum(len(function.parameters) for function in functions if is_required or function.strict)
    check_guidance_size(held + (answer.characters if answer is not None else 0), param)
    writer = _Writer(calls, control, has_bare_calls=has_bare_calls)
    bodies = [writer.call(function, is_held=is_required or function.strict) for function in functions]
    numbered = [f"call_{number}: {body}" for number, body in enumerate(bodies)]
    if answer is None:
        rules = writer.rules(len(bodies), is_required=is_required, once=not tools.parallel)
    else:
        called = writer.rules(len(bodies), is_required=True, once=not tools.parallel, start="called")
        rules = ["start: called | answer", f"answer: %json {_schema_of_answer(answer)}", *called]
    source = "\n".join(("%llguidance {}", *rules, *numbered))
    return Guidance(GuidanceKind.LARK, source, param=param)


class _Writer:
    """Writes the rules of one format."""

    def __init__(self, calls: CallFormat, control: Mapping[str, int], *, has_bare_calls: bool) -> None:
        self._format = calls.name
        self._control = control
        self._is_bare = has_bare_calls and calls.name == "mistral"

    def call(self, function: Function, *, is_held: bool) -> str:
        """Return the rule of a call of `function` without what stands around it."""
        arguments = f"%json {_schema(function) if is_held else _ANY}"
        if self._is_bare:
            return f"{json.dumps(function.name)} {self._mark('[ARGS]')} {arguments}"
        key = "parameters" if self._format == "llama3" else "arguments"
        head = json.dumps(f'{{"name": {json.dumps(function.name)}, "{key}": ')
        return f'{head} {arguments} "}}"'

    def rules(self, count: int, *, is_required: bool, once: bool, start: str = "start") -> list[str]:
        """Return the rules that stand above those of the calls; `start` is the first of those of required ones."""
        any_call = "any_call: " + " | ".join(f"call_{number}" for number in range(count))
        more = "" if once else "*"
        text = "TEXT: /(.|\n)*/".replace("\n", "\\n")
        match self._format:
            case "llama3":
                calls = "calls: any_call" + ("" if once else ' ("; " any_call)*')
                if is_required:
                    return [f"{start}: calls", calls, any_call]
                return ["start: calls | TEXT?", r"TEXT: /[^{ \n](.|\n)*/", calls, any_call]
            case "mistral" if not self._is_bare:
                listed = "calls: any_call" + ("" if once else ' (", " any_call)*')
                tagged = 'tagged: "[" calls "]"'
                if is_required:
                    return [f"{start}: {self._mark('[TOOL_CALLS]')} tagged", tagged, listed, any_call]
                return [*self._opened("[TOOL_CALLS]", "", text), tagged, listed, any_call]
            case "mistral":
                opener, tagged, between = "[TOOL_CALLS]", "tagged: any_call", ""
            case _:
                opener, between = "<tool_call>", ' "\\n"'
                tagged = f'tagged: "\\n" any_call "\\n" {self._mark("</tool_call>")}'
        if is_required:
            repeated = f" ({between} {self._mark(opener)} tagged){more}" if more else ""
            return [f"{start}: {self._mark(opener)} tagged{repeated}", tagged, any_call]
        return [*self._opened(opener, more, text), tagged, any_call]

    def _opened(self, opener: str, more: str, text: str) -> list[str]:
        """Return rules of text, and then what is `tagged` behind the opener, once or with `more` of both."""
        start = f"start: (opened tagged){more or '?'} rest"
        if opener in self._control:
            return [start, "rest: TEXT", f"opened: TEXT {self._mark(opener)}", text]
        return [start, "rest: TEXT", f"opened[lazy]: TEXT {json.dumps(opener)}", text]

    def _mark(self, text: str) -> str:
        return f"<[{self._control[text]}]>" if text in self._control else json.dumps(text)


def _schema(function: Function) -> str:
    """Return the schema of its arguments, which are an object, with our options in place of any of its own."""
    try:
        schema: Any = {"type": "object", **json.loads(function.parameters or _ANY)}
    except (ValueError, TypeError, RecursionError) as error:
        message = f"the parameters of {function.name!r} can't be read: {error}"
        raise InvalidRequestError(message, code="guidance_invalid", param="tools") from error
    return json.dumps({**schema, "x-guidance": _JSON})


def _schema_of_answer(answer: Guidance) -> str:
    """Return the schema of an answer in JSON, with our options and its white space in place of any of its own."""
    if answer.kind not in {GuidanceKind.JSON_SCHEMA, GuidanceKind.JSON_OBJECT}:
        message = f"'{answer.param}' and tools can't be given together: with tools an answer is text or JSON"
        raise InvalidRequestError(message, code="guidance_unsupported", param=answer.param)
    try:
        schema: Any = json.loads(_ANY if answer.kind is GuidanceKind.JSON_OBJECT else answer.source)
    except (ValueError, RecursionError) as error:
        message = f"'{answer.param}' can't be read: {error}"
        raise InvalidRequestError(message, code="guidance_invalid", param=answer.param) from error
    if not isinstance(schema, dict):
        message = f"'{answer.param}' has to be a JSON Schema that is an object, where tools are given with it"
        raise InvalidRequestError(message, code="guidance_invalid", param=answer.param)
    space = WHITESPACE if answer.whitespace is None else answer.whitespace
    options = {"whitespace_pattern": space} if space else {"whitespace_flexible": False}
    return json.dumps({**schema, "x-guidance": {"lenient": False, "coerce_one_of": False, **options}})
