"""The tools of Anthropic's Messages API, and which of them have to be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.apis.messages.blocks import CacheControl
from gateway.wire.decode import decode, unsupported
from gateway.wire.demands import Anything, Only, Unread, Wish
from gateway.wire.parts import Reading
from gateway.wire.tools import HOSTED, Description, checked, is_left_out, loosened, schema_text
from inference.tools import Function, ToolMode, Tools

MAX_MESSAGE_TOOLS = 512  # agents declare the tools of all their MCP servers

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}\Z")]
MessageTools = Annotated[list[msgspec.Raw], Meta(max_length=MAX_MESSAGE_TOOLS)]

_HOSTED = ("web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset", "advisor")


class MessageTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs; `input_schema` is the JSON Schema of its input."""

    name: ToolName
    input_schema: dict[str, Any]
    description: Description | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    input_examples: Annotated[list[dict[str, Any]], Meta(max_length=64)] | None = None
    cache_control: CacheControl = None
    defer_loading: Annotated[bool | None, Wish(False)] = None  # all are loaded from the beginning
    eager_input_streaming: Annotated[bool | None, Unread()] = None  # input is always streamed as it is written
    allowed_callers: Annotated[Anything, Only(["direct"])] = UNSET


class _Head(msgspec.Struct):
    type: str | None = None


class AutoChoice(msgspec.Struct, tag_field="type", tag="auto", forbid_unknown_fields=True):
    """Tools are called as the model likes."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(msgspec.Struct, tag_field="type", tag="any", forbid_unknown_fields=True):
    """One of the tools has to be called."""

    disable_parallel_tool_use: bool | None = None


class ToolChoice(msgspec.Struct, tag_field="type", tag="tool", forbid_unknown_fields=True):
    """The named tool has to be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """No tool may be called."""


MessageToolChoice = AutoChoice | AnyChoice | ToolChoice | NoChoice


def tools_of(given: Sequence[msgspec.Raw] | None, choice: MessageToolChoice | None, reading: Reading) -> Tools | None:
    """Return what the fields `tools` and `tool_choice` ask for; None without tools."""
    declared = [_function(tool, reading, f"tools[{index}]") for index, tool in enumerate(given or ())]
    functions = tuple(function for function in declared if function is not None)
    once = isinstance(choice, AutoChoice | AnyChoice) and bool(choice.disable_parallel_tool_use)
    match choice:
        case AnyChoice():
            mode = loosened(ToolMode.REQUIRED, reading) if None in declared else ToolMode.REQUIRED
            return checked(functions, mode, (), once=once)
        case ToolChoice():
            return checked(functions, ToolMode.REQUIRED, (choice.name,), once=True)
        case NoChoice():
            return checked(functions, ToolMode.NONE, (), once=once)
    return checked(functions, ToolMode.AUTO, (), once=once)


def _function(tool: msgspec.Raw, reading: Reading, at: str) -> Function | None:
    """Return the function that a tool is, None of a hosted one that is left out."""
    head = decode(_Head, tool, at=at)
    if head.type not in (None, "custom"):
        if is_left_out(head.type, _HOSTED, reading, at):
            return None
        if head.type.startswith(_HOSTED):
            why = HOSTED
        else:
            why = "the models here don't know it: declare it as a tool of your own, with its 'input_schema'"
        raise unsupported(f"{at}.type", f"{head.type[:64]!r}: {why}")
    given = decode(MessageTool, tool, at=at)
    reading.check(given, f"{at}.")
    description = given.description or ""
    if given.input_examples:
        examples = "\n".join(msgspec.json.encode(example).decode() for example in given.input_examples)
        description = f"{description}\nExamples of its input:\n{examples}"
    return Function(given.name, description, schema_text(given.input_schema, f"{at}.input_schema"), bool(given.strict))
