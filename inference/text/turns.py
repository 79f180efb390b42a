"""A chat's messages in the shape that chat templates of Hugging Face's format expect.

    {"role": "assistant", "content": "…", "reasoning_content": "…",
     "tool_calls": [{"id": "…", "type": "function", "function": {"name": "…", "arguments": {…}}}]}
    {"role": "tool", "content": "…", "tool_call_id": "…", "name": "…"}

`arguments` are parsed; where the model wrote no JSON object, they are its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult, text_of

Turn = dict[str, Any]


def turns_of(messages: Sequence[Message], plain: Callable[[str], str]) -> list[Turn]:
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
    except (ValueError, RecursionError):
        arguments = None
    return _mapped(arguments, plain) if isinstance(arguments, dict) else plain(written)


def _mapped(value: Any, plain: Callable[[str], str]) -> Any:
    match value:
        case str():
            return plain(value)
        case dict():
            return {plain(key): _mapped(item, plain) for key, item in value.items()}
        case list():
            return [_mapped(item, plain) for item in value]
    return value
