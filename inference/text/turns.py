"""A chat's messages in the shape that chat templates of Hugging Face's format expect.

    {"role": "assistant", "content": "…", "reasoning_content": "…",
     "tool_calls": [{"id": "…", "type": "function", "function": {"name": "…", "arguments": {…}}}]}
    {"role": "tool", "content": "…", "tool_call_id": "…", "name": "…"}

`arguments` are parsed; where the model wrote no JSON object, they are its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult, text_of
from inference.text.call_formats import GENERIC, CallFormat
from inference.text.call_writer import written
from inference.tools import Tools
from inference.types import TemplateValue

Turn = dict[str, Any]
Plain = Callable[[str], str]

_GENERIC = """You can call functions. They are listed below in JSON, one in each line:
<tools>
{tools}
</tools>
To call one, write nothing but a JSON object with its name and its arguments between these tags:
<tool_call>
{{"name": "the name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
For several calls write that several times. What the functions answer comes between <tool_response> tags. Where no \
function helps, answer in plain text."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A template's input beside the messages: the `tools`.

    With `is_generic` the template knows nothing of tools: they become text of the other turns. With `writes` it has no
    place for calls: they become text in that format. `identify` makes the ids that a template wants of a call's id, its
    name and its number in the chat. With `is_single` the template takes one call in each turn: others stand in turns of
    their own, each before its result. Without `thinks` the template is told that no thought is wanted. `values` are the
    client's for the template, by name. A prompt that `continues` ends within the last turn, behind its text.
    """

    tools: Tools | None = None
    is_generic: bool = False
    identify: Callable[[str, str, int], str] | None = None
    is_single: bool = False
    writes: CallFormat | None = None
    thinks: bool = True
    values: tuple[tuple[str, TemplateValue], ...] = ()
    continues: str = ""


PLAIN = Rendering()


def rendered(messages: Sequence[Message], rendering: Rendering, plain: Plain) -> tuple[list[Turn], list[Turn]]:
    """Return the turns of `messages` and the descriptions of the tools; see `turns_of` for `plain`."""
    turns = turns_of(messages, plain)
    tools = [] if rendering.tools is None else tools_of(rendering.tools, plain)
    if rendering.is_generic:
        return _in_text(turns, tools), []
    if rendering.writes is not None:
        return [_in_words(turn, rendering.writes) for turn in turns], tools
    if rendering.identify is not None:
        _identify(turns, rendering.identify)
    return _one_call_each(turns) if rendering.is_single else turns, tools


def values_of(rendering: Rendering, plain: Plain) -> dict[str, TemplateValue]:
    """Return what a template gets beside turns and tools, by name; each text of the client through `plain`."""
    values = {name: plain(value) if isinstance(value, str) else value for name, value in rendering.values}
    return values if rendering.thinks else {**values, "enable_thinking": False}  # as most templates call it


def tools_of(tools: Tools, plain: Plain) -> list[Turn]:
    """Return the functions as templates expect them, each text of the client through `plain`."""
    return [
        {
            "type": "function",
            "function": {
                "name": plain(function.name),
                "description": plain(function.description),
                "parameters": _arguments(function.parameters or '{"type":"object","properties":{}}', plain),
            },
        }
        for function in tools.functions
    ]


def _in_text(turns: list[Turn], tools: list[Turn]) -> list[Turn]:
    """Return turns that a template without tools renders: these are described to the system, calls and results told."""
    told: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool":
            text = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if told and told[-1].get("is_result"):
                told[-1]["content"] += f"\n{text}"
            else:
                told.append({"role": "user", "content": text, "is_result": True})
        else:
            told.append(_in_words(turn, GENERIC))
    if tools:
        text = _GENERIC.format(tools="\n".join(_json(tool["function"]) for tool in tools))
        if told and told[0]["role"] == "system":
            told[0] = {"role": "system", "content": f"{told[0]['content']}\n\n{text}"}
        else:
            told.insert(0, {"role": "system", "content": text})
    return told


def _in_words(turn: Turn, calls: CallFormat) -> Turn:
    """Return a turn whose calls are part of its text."""
    if not (given := turn.get("tool_calls")):
        return turn
    told = written(calls, [(call["function"]["name"], call["function"]["arguments"]) for call in given])
    return {"role": turn["role"], "content": "\n".join(filter(None, (turn["content"], told)))}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _identify(turns: list[Turn], identify: Callable[[str, str, int], str]) -> None:
    """Give the calls the ids that the template wants, and their results the same."""
    known: dict[str, str] = {}
    for turn in turns:
        for call in turn.get("tool_calls", ()):
            call["id"] = known.setdefault(call["id"], identify(call["id"], call["function"]["name"], len(known)))
        if (given := turn.get("tool_call_id")) is not None:
            turn["tool_call_id"] = known.get(given) or identify(given, turn.get("name", "unknown"), len(known))


def _one_call_each(turns: list[Turn]) -> list[Turn]:
    """Return turns with one call at most, each before what came of it."""
    told: list[Turn] = []
    waiting: list[Turn] = []  # turns of further calls, whose place is behind the results of those before
    for turn in turns:
        if turn["role"] == "tool":
            while any(call["id"] == turn["tool_call_id"] for later in waiting for call in later["tool_calls"]):
                told.append(waiting.pop(0))
        else:
            told, waiting = [*told, *waiting], []
        calls = turn.get("tool_calls", ())
        waiting += ({"role": turn["role"], "content": "", "tool_calls": [call]} for call in calls[1:])
        told.append({**turn, "tool_calls": calls[:1]} if calls else turn)
    return [*told, *waiting]


def turns_of(messages: Sequence[Message], plain: Plain) -> list[Turn]:
    """Return the turns of `messages`, images left out; every text that a client may have written goes through `plain`,
    names, ids and the keys of arguments included.
    """
    turns: list[Turn] = []
    names: dict[str, str] = {}  # of the called functions, by the calls' ids
    for message in messages:
        if message.role == "tool":
            turns += (_result(part, names, plain) for part in message.parts if isinstance(part, ToolResult))
        elif len(message.parts) == 1 and isinstance(message.parts[0], str):
            turns.append({"role": message.role, "content": plain(message.parts[0])})
        else:
            turns.append(_turn(message, names, plain))
    return turns


def _turn(message: Message, names: dict[str, str], plain: Callable[[str], str]) -> Turn:
    content = tuple(part for part in message.parts if isinstance(part, str | Image))
    thought = [part.text for part in message.parts if isinstance(part, Reasoning)]
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    names |= {call.id: call.name for call in calls}
    turn: Turn = {"role": message.role, "content": plain(text_of(content))}
    if thought:
        turn["reasoning_content"] = plain("\n".join(thought))
    if calls:
        turn["tool_calls"] = [
            {
                "id": plain(call.id),
                "type": "function",
                "function": {"name": plain(call.name), "arguments": _arguments(call.arguments, plain)},
            }
            for call in calls
        ]
    return turn


def _result(result: ToolResult, names: dict[str, str], plain: Callable[[str], str]) -> Turn:
    turn: Turn = {"role": "tool", "content": plain(text_of(result.content)), "tool_call_id": plain(result.call_id)}
    if (name := names.get(result.call_id)) is not None:
        turn["name"] = plain(name)
    return turn


def _arguments(written: str, plain: Callable[[str], str]) -> Any:
    try:
        arguments = json.loads(written)
        if isinstance(arguments, dict):
            return _mapped(arguments, plain)
    except (ValueError, RecursionError):
        pass  # no JSON, nested too deeply, or with half a character: then it is told as it was written
    return plain(written)


def _mapped(value: Any, plain: Callable[[str], str]) -> Any:
    match value:
        case str():
            value.encode()  # JSON can write halves of characters, which no tokenizer takes
            return plain(value)
        case dict():
            return {_mapped(key, plain): _mapped(item, plain) for key, item in value.items()}
        case list():
            return [_mapped(item, plain) for item in value]
    return value
