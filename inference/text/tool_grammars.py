"""Grammars in Lark around schemas: answers that must call functions, call strict ones, or are JSON without a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidRequestError
from inference.guidance.library import options_of
from inference.guidance.schemas import loosened, may_need_loosening
from inference.text.argument_grammars import ArgumentRules, in_lark
from inference.text.call_formats import ID, INDEX, Body, CallFormat
from inference.tools import Function, ToolMode, Tools
from inference.types import Guidance, GuidanceKind
from inference.validation import check_guidance_size

_IN_JSON = frozenset({Body.OBJECTS, Body.JSON})
_FREE = {INDEX: "/[0-9]{1,4}/", ID: "/[a-z0-9]{1,10}/"}
_ANY = '{"type":"object"}'


def guidance_of_tools(
    tools: Tools,
    calls: CallFormat,
    control: Mapping[str, int],
    *,
    answer: Guidance | None = None,
) -> Guidance | None:
    """Return the guidance of an answer to `tools`, held to `answer` where it calls none: None where any is permitted.

    `control` are the ids of those of the format's marks that are control tokens. Where calls are required, the
    arguments are held to the schemas of all functions, else to those of strict ones. Text may stand before a call that
    isn't required, unless there is an `answer`. Raise `InvalidRequestError` for one that isn't JSON, and for schemas
    that together are too large, before any is read.
    """
    functions, is_required = tools.callable, tools.mode is ToolMode.REQUIRED
    if not functions:
        return framed(answer, calls, control) if answer is not None else None
    if not (is_required or answer is not None or any(function.strict for function in functions)):
        return None
    answer = None if is_required else answer
    param = answer.param if answer is not None else tools.param if is_required else "tools"
    held = sum(len(function.parameters) for function in functions if is_required or function.strict)
    check_guidance_size(held + (answer.characters if answer is not None else 0), param)
    writer = _Writer(calls, control)
    bodies = [writer.call(function, is_held=is_required or function.strict) for function in functions]
    numbered = [f"call_{number}: {body}" for number, body in enumerate(bodies)]
    if answer is None:
        rules = writer.rules(len(bodies), is_required=is_required, once=not tools.parallel)
    else:
        called = writer.rules(len(bodies), is_required=True, once=not tools.parallel, start="called")
        rules = ["start: called | answer", f"answer: {writer.answer(f'%json {_schema_of_answer(answer)}')}", *called]
    source = "\n".join(("%llguidance {}", *rules, *numbered, *writer.arguments.rules))
    if answer is not None:
        return Guidance(GuidanceKind.LARK, source, param=param, without=answer.without, schema_at=answer.schema_at)
    return Guidance(GuidanceKind.LARK, source, param=param, without=writer.without, schema_at="tools[].parameters")


class _Writer:
    """Writes the rules of one format; `without` are the keywords that it leaves out of schemas that aren't strict."""

    def __init__(self, calls: CallFormat, control: Mapping[str, int]) -> None:
        self.without: tuple[str, ...] = ()
        self._format = calls
        self._control = control
        marks = sorted(control, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, marks))) if marks else None
        self._lead = f"({self.literal(calls.leads[0])})? " if calls.leads[0] else ""
        self.arguments = ArgumentRules(calls, self.literal, frozenset(control))

    def literal(self, text: str) -> str:
        """Return what writes `text`, of which some parts may be control tokens."""
        told: list[str] = []
        place = 0
        for match in self._marks.finditer(text) if self._marks is not None else ():
            told += [json.dumps(text[place : match.start()])] if match.start() > place else []
            told.append(f"<[{self._control[match.group()]}]>")
            place = match.end()
        told += [json.dumps(text[place:])] if text[place:] or not told else []
        return " ".join(told)

    def call(self, function: Function, *, is_held: bool) -> str:
        """Return the rule of a call of `function` without what stands before and behind each."""
        calls = self._format
        schema = self._schema(function) if is_held else None
        if calls.body in _IN_JSON:
            options = options_of(strict=function.strict)
            arguments = f"%json {json.dumps({**schema, 'x-guidance': options}) if schema is not None else _ANY}"
            if calls.body is Body.JSON:
                return f"{self._numbered(function.name + calls.middle)} {arguments}"
            (name_key, arguments_key), name = calls.keys, json.dumps(function.name)
            pairs = f'"{name_key}": {name}, "{arguments_key}": ' if name_key else f"{name}: "
            return f'{self._numbered("{" + calls.extra + pairs)} {arguments} "}}"'
        arguments, is_held = self.arguments.arguments(function.name, schema, strict=function.strict)
        self.without += () if is_held else ("",)
        return f"{self.literal(function.name + calls.middle)} ({arguments})"

    def _schema(self, function: Function) -> dict[str, Any]:
        """Return the schema of its arguments, which are an object."""
        try:
            schema: Any = {"type": "object", **json.loads(function.parameters or _ANY)}
        except (ValueError, TypeError, RecursionError) as error:
            message = f"the parameters of {function.name!r} can't be read: {error}"
            raise InvalidRequestError(message, code="guidance_invalid", param="tools") from error
        if not function.strict and may_need_loosening(function.parameters) and (loose := loosened(schema)) != schema:
            self.without += ("pattern",)
            schema = loose
        return dict(schema)

    def _numbered(self, text: str) -> str:
        """Return what writes `text`, in which the call's number or its id may stand."""
        parts = re.split(f"({INDEX}|{ID})", text)
        return " ".join(_FREE.get(part) or self.literal(part) for part in parts)

    def rules(self, count: int, *, is_required: bool, once: bool, start: str = "start") -> list[str]:
        """Return the rules that stand above those of the calls; `start` is the first of those of required ones."""
        calls, literal = self._format, self.literal
        any_call = ["any_call: " + " | ".join(f"call_{number}" for number in range(count))]
        is_list = bool(calls.brackets[0])
        begin, end = ("", "") if is_list else (calls.begin, calls.end)
        one = f"{self._numbered(begin)} any_call {literal(end)}"
        opener = calls.openers[0] if calls.openers and not calls.begins else ""
        before, behind = calls.section
        if is_list:
            before, behind = f"{calls.begin}{calls.brackets[0]}", f"{calls.brackets[1]}{calls.end}"
        is_single = once or bool(calls.leads[0])  # an answer with those ends behind a call
        more = "" if is_single else f" ({literal(calls.between)} one)*"
        if before:
            begun, rest = literal(before), f"one{more} {literal(behind)}"
            turn = f"{begun} {rest}"
            tagged = f"{literal(before.partition(opener)[2])} {rest}" if opener else turn
        else:
            turn = f"one{more}"
            tagged = f"{literal(begin.partition(opener)[2])} any_call {literal(end)}" if opener else turn
        rules = [f"one: {one}", *any_call]
        if is_required:
            return [f"{start}: {self._lead}{turn}", *rules]
        text = r"TEXT: /(.|\n)*/"
        if calls.leads[0]:
            return [f"start: {self._lead}({turn} | {literal(calls.leads[1])} TEXT)", text, *rules]
        if calls.begins:
            first = re.escape("".join(calls.begins))
            return [f"start: {turn} | OTHER?", rf"OTHER: /[^{first} \n](.|\n)*/", *rules]
        repeated = "?" if before or once else "*"
        opened = (
            f"opened: TEXT {literal(opener)}" if opener in self._control else f"opened[lazy]: TEXT {json.dumps(opener)}"
        )
        return [f"start: (opened tagged){repeated} TEXT", opened, f"tagged: {tagged}", text, *rules]

    def answer(self, rule: str) -> str:
        """Return the rule of an answer that is `rule` and no call."""
        return f"{self._lead}{self.literal(self._format.leads[1])} {rule}" if self._lead else rule


def framed(answer: Guidance, calls: CallFormat, control: Mapping[str, int]) -> Guidance:
    """Return what holds a whole answer to `answer`, with what stands around an answer's text in the format `calls`."""
    if not calls.leads[0]:
        return answer
    match answer.kind:
        case GuidanceKind.REGEX:
            rule = f"/{in_lark(answer.source)}/"
        case GuidanceKind.CHOICE:
            rule = f"({' | '.join(map(json.dumps, answer.choices))})"
        case GuidanceKind.LARK:
            message = (
                f"'{answer.param}': this model's answers have parts, and a grammar of your own can't hold one of them"
            )
            raise InvalidRequestError(message, code="guidance_unsupported", param=answer.param)
        case _:
            rule = f"%json {_schema_of_answer(answer)}"
    source = f"%llguidance {{}}\nstart: {_Writer(calls, control).answer('answer')}\nanswer: {rule}"
    return Guidance(GuidanceKind.LARK, source, param=answer.param, without=answer.without, schema_at=answer.schema_at)


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
    return json.dumps({**schema, "x-guidance": options_of(strict=answer.strict, whitespace=answer.whitespace)})
