"""The items of a response's `input`, which can't be a tagged union: the commonest has no `type`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.decode import MAX_PARTS, decode, invalid, unsupported
from gateway.wire.demands import Anything, Only
from gateway.wire.parts import CallId, FunctionName, Given, Reading, ResponseContent
from inference.messages import Message, Part, Reasoning, ToolCall, ToolResult
from inference.tools import in_namespace

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

ItemId = Annotated[str, Meta(max_length=128)]


class _Head(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    status: str | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether it is a message of the assistant's that may be gone on with."""
        is_message = self.type in {None, "message"} and self.role == "assistant"
        return is_message and self.status in {"in_progress", "incomplete"}


class MessageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message: what a client writes, or an answer's output item given back whole."""

    role: str
    content: ResponseContent
    type: str | None = None
    id: ItemId | None = None
    status: str | None = None
    phase: Given = UNSET  # of an answer's message


class FunctionCallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function call of an answer, given back."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: str
    id: ItemId | None = None
    status: str | None = None
    parsed_arguments: Given = UNSET  # what an SDK made of them
    namespace: FunctionName | None = None  # of the function


class FunctionOutputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function's result."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: ResponseContent
    id: ItemId | None = None
    status: str | None = None


class ReasoningTextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of what the model thought, or of a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The model's thought, given back: its `content`, or where that is missing the `summary`."""

    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningTextPart], Meta(max_length=MAX_PARTS)] = []
    content: Annotated[list[ReasoningTextPart], Meta(max_length=MAX_PARTS)] | None = None
    id: ItemId | None = None
    status: str | None = None
    encrypted_content: Annotated[Anything, Only(why="thought is not encrypted here")] = UNSET


ITEMS = (MessageItem, FunctionCallItem, FunctionOutputItem, ReasoningItem)


def messages_of(items: Sequence[msgspec.Raw], reading: Reading) -> tuple[Message, ...]:
    """Return the messages in `input` items. Reasoning and function calls are parts of the assistant's message that they
    stand beside, and so is a message behind one that isn't finished.
    """
    messages: list[Message] = []
    is_begun = False  # the item before is a message that isn't finished
    is_open = False  # the last message is the assistant's, and what it thought or called may still belong to it
    has_said = False  # it has text already: the next text is another message
    for index, item in enumerate(items):
        at = f"input[{index}]"
        head = decode(_Head, item, at=at)
        match head.type:
            case None | "message":
                message = _message(item, head, reading, at)
                if message.role != "assistant":
                    messages.append(message)
                    is_open = False
                elif is_open and not has_said:
                    messages[-1] = Message("assistant", (*messages[-1].parts, *message.parts))
                    has_said = True
                elif is_begun:
                    messages[-1] = gone_on_with(messages[-1], message)
                else:
                    messages.append(message)
                    is_open = has_said = True
            case "function_call" | "reasoning":
                part = _call(item, at) if head.type == "function_call" else _reasoning(item, reading, at)
                if is_open and (isinstance(part, ToolCall) or not has_said):
                    messages[-1] = Message("assistant", (*messages[-1].parts, part))
                else:
                    messages.append(Message("assistant", (part,)))
                    is_open, has_said = True, False
            case "function_call_output":
                messages.append(_result(item, reading, at))
                is_open = False
            case _:
                why = "only messages, function calls, their outputs and reasoning are taken"
                raise unsupported(f"{at}.type", why)
        is_begun = head.is_unfinished
    return tuple(messages)


def unfinished_of(items: Sequence[msgspec.Raw]) -> str:
    """Return the field that says that the last item is a message which the assistant hasn't finished; "" without."""
    at = f"input[{len(items) - 1}]"
    return f"{at}.status" if items and decode(_Head, items[-1], at=at).is_unfinished else ""


def gone_on_with(begun: Message, rest: Message) -> Message:
    """Return the message that is `begun` and goes on with the `rest`: in the same text, where both have one there."""
    first, *others = rest.parts
    if begun.parts and isinstance(begun.parts[-1], str) and isinstance(first, str):
        return Message(begun.role, (*begun.parts[:-1], begun.parts[-1] + first, *others))
    return Message(begun.role, (*begun.parts, *rest.parts))


def _message(item: msgspec.Raw, head: _Head, reading: Reading, at: str) -> Message:
    if head.role not in _ROLES:
        raise invalid(f"{at}.role", f"'{at}.role' must be one of {', '.join(_ROLES)}.")
    given = decode(MessageItem, item, at=at)
    reading.check(given, f"{at}.")
    role = _ROLES[given.role]
    return Message(role, reading.content(given.content, f"{at}.content", sees=role == "user"))


def _call(item: msgspec.Raw, at: str) -> Part:
    given = decode(FunctionCallItem, item, at=at)
    return ToolCall(given.call_id, in_namespace(given.namespace, given.name), given.arguments)


def _result(item: msgspec.Raw, reading: Reading, at: str) -> Message:
    given = decode(FunctionOutputItem, item, at=at)
    return Message("tool", (ToolResult(given.call_id, reading.content(given.output, f"{at}.output", sees=True)),))


def _reasoning(item: msgspec.Raw, reading: Reading, at: str) -> Part:
    given = decode(ReasoningItem, item, at=at)
    reading.check(given, f"{at}.")
    return Reasoning("\n".join(piece.text for piece in given.content or given.summary))
