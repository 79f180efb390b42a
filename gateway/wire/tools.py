"""The functions that a model may call, and which of them it has to, as Chat Completions and Responses say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.common import Anything, Only, refuse_unless_neutral
from gateway.wire.decode import decode, invalid, unsupported
from gateway.wire.limits import MAX_TOOLS
from inference.tools import Function, ToolMode, Tools
from inference.types import MAX_GUIDANCE_CHARACTERS

DeclaredName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}\Z")]
Description = Annotated[str, Meta(max_length=65_536)]
ToolList = Annotated[list[msgspec.Raw], Meta(max_length=MAX_TOOLS)]

_HOSTED = "no hosted tools run here: declare a function, and answer the model's calls of it yourself"
_TYPES = {
    "mcp": "no MCP servers are called from here: declare their tools as functions, and call them yourself",
    "custom": "only functions are called: declare one with a parameter for the text",
    "namespace": "declare its functions one by one",
}


class DeclaredFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the client can call; `parameters` is the JSON Schema of its arguments."""

    name: DeclaredName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function in Chat Completions."""

    type: Literal["function"]
    function: DeclaredFunction


class ResponseTool(DeclaredFunction, kw_only=True, forbid_unknown_fields=True):
    """A function in Responses."""

    type: Literal["function"]
    defer_loading: Annotated[Anything, Only(False)] = UNSET


class _Head(msgspec.Struct):
    type: str


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class ChatNamed(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """That function has to be called, in Chat Completions."""

    function: _Named


class ResponseNamed(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """That function has to be called, in Responses."""

    name: str


class _AllowedFunction(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str | None = None
    function: _Named | None = None


class _Allowed(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_AllowedFunction], Meta(min_length=1, max_length=MAX_TOOLS)]


class ChatAllowed(msgspec.Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """Only some of the tools may be called, in Chat Completions."""

    allowed_tools: _Allowed


class ResponseAllowed(_Allowed, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """Only some of the tools may be called, in Responses."""


Mode = Literal["auto", "none", "required"]
ChatToolChoice = Mode | ChatNamed | ChatAllowed
ResponseToolChoice = Mode | ResponseNamed | ResponseAllowed


def tools_of(
    given: Sequence[msgspec.Raw] | None,
    kind: type[ChatTool | ResponseTool],
    choice: ChatToolChoice | ResponseToolChoice | None,
    *,
    parallel: bool | None,
) -> Tools | None:
    """Return what the fields `tools`, `tool_choice` and `parallel_tool_calls` ask for; None without tools."""
    functions = tuple(_function(tool, kind, f"tools[{index}]") for index, tool in enumerate(given or ()))
    mode, allowed = _chosen(choice)
    return checked(functions, mode, allowed, parallel=parallel is not False)


def checked(
    functions: tuple[Function, ...], mode: ToolMode, allowed: tuple[str, ...], *, parallel: bool
) -> Tools | None:
    """Return the tools of a request, None without functions; refuse (400) what contradicts itself."""
    if not functions:
        if allowed or mode is ToolMode.REQUIRED:
            raise invalid("tool_choice", "'tool_choice' names what has to be called: send 'tools' with it.")
        return None
    names = set()
    for index, function in enumerate(functions):
        if function.name in names:
            raise invalid(f"tools[{index}]", f"There are two functions with the name {function.name!r}.")
        names.add(function.name)
    for name in allowed:
        if name not in names:
            raise invalid("tool_choice", f"'tool_choice' names {name[:64]!r}, which isn't among 'tools'.")
    return Tools(functions, mode, allowed, parallel)


def schema_text(schema: dict[str, Any] | None, at: str) -> str:
    """Return the JSON Schema of a function's arguments, which stands in the field `at`, as JSON; "" where it says
    nothing. Refuse (400) one that is of no object, or longer than what an answer can be held to.
    """
    if schema and schema.get("type", "object") != "object":
        raise invalid(at, f"'{at}' has to be a JSON Schema of an object: 'type' is 'object'.")
    text = msgspec.json.encode(schema).decode() if schema else ""
    if len(text) > MAX_GUIDANCE_CHARACTERS:
        raise invalid(at, f"'{at}' has {len(text)} characters: a schema may have {MAX_GUIDANCE_CHARACTERS}.")
    return text


def _function(tool: msgspec.Raw, kind: type[ChatTool | ResponseTool], at: str) -> Function:
    head = decode(_Head, tool, at=at)
    if head.type != "function":
        raise unsupported(f"{at}.type", _TYPES.get(head.type, f"{_HOSTED} ({head.type[:64]!r})"))
    given = decode(kind, tool, at=at)
    declared = given.function if isinstance(given, ChatTool) else given
    refuse_unless_neutral(given, f"{at}.")
    where = f"{at}.{'function.' if isinstance(given, ChatTool) else ''}parameters"
    schema = schema_text(declared.parameters, where)
    return Function(declared.name, declared.description or "", schema, bool(declared.strict))


def _chosen(choice: ChatToolChoice | ResponseToolChoice | None) -> tuple[ToolMode, tuple[str, ...]]:
    match choice:
        case None:
            return ToolMode.AUTO, ()
        case str():
            return ToolMode(choice), ()
        case ChatNamed():
            return ToolMode.REQUIRED, (choice.function.name,)
        case ResponseNamed():
            return ToolMode.REQUIRED, (choice.name,)
        case ChatAllowed():
            allowed: _Allowed = choice.allowed_tools
        case ResponseAllowed():
            allowed = choice
    names = tuple(tool.function.name if tool.function is not None else tool.name or "" for tool in allowed.tools)
    return ToolMode(allowed.mode), names
