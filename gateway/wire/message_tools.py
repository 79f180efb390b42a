"""The tools of Anthropic's Messages API, and which of them have to be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.common import Anything, Only, refuse_unless_neutral
from gateway.wire.decode import decode, unsupported
from gateway.wire.message_blocks import CacheControl
from gateway.wire.tools import Description, checked, schema_text
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
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None  # a hint: all are loaded from the beginning
    eager_input_streaming: bool | None = None  # a hint: input is always streamed as it is written
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
    """That tool has to be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """No tool may be called."""


MessageToolChoice = AutoChoice | AnyChoice | ToolChoice | NoChoice


def tools_of(given: Sequence[msgspec.Raw] | None, choice: MessageToolChoice | None) -> Tools | None:
    """Return what the fields `tools` and `tool_choice` ask for; None without tools."""
    functions = tuple(_function(tool, f"tools[{index}]") for index, tool in enumerate(given or ()))
    mode, allowed = ToolMode.AUTO, ()
    parallel = isinstance(choice, NoChoice) or choice is None or not choice.disable_parallel_tool_use
    match choice:
        case AnyChoice():
            mode = ToolMode.REQUIRED
        case ToolChoice():
            return checked(functions, ToolMode.REQUIRED, (choice.name,), parallel=parallel)
        case NoChoice():
            mode = ToolMode.NONE
    return checked(functions, mode, allowed, parallel=parallel)


def _function(tool: msgspec.Raw, at: str) -> Function:
    head = decode(_Head, tool, at=at)
    if head.type not in (None, "custom"):
        if head.type.startswith(_HOSTED):
            why = "no hosted tools run here: declare a tool of your own, and answer the model's calls of it"
        else:
            why = "the models here don't know it: declare it as a tool of your own, with its 'input_schema'"
        raise unsupported(f"{at}.type", f"{head.type[:64]!r}: {why}")
    given = decode(MessageTool, tool, at=at)
    refuse_unless_neutral(given, f"{at}.")
    description = given.description or ""
    if given.input_examples:
        examples = "\n".join(msgspec.json.encode(example).decode() for example in given.input_examples)
        description = f"{description}\nExamples of its input:\n{examples}"
    return Function(given.name, description, schema_text(given.input_schema, f"{at}.input_schema"), bool(given.strict))
