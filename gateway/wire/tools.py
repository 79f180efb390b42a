"""The functions that a model may call, and which of them it has to, as Chat Completions and Responses say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.decode import MAX_TOOLS, decode, invalid, unsupported
from gateway.wire.demands import Anything, Only, Wish
from gateway.wire.parts import CacheHint, Reading
from inference.tools import Function, ToolMode, Tools, in_namespace
from inference.types import MAX_GUIDANCE_CHARACTERS

DeclaredName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}\Z")]
Description = Annotated[str, Meta(max_length=65_536)]
ToolList = Annotated[list[msgspec.Raw], Meta(max_length=MAX_TOOLS)]

HOSTED = (
    "no hosted tools run here: declare a function, and answer the model's calls of it yourself; or let the tenant's "
    "owners choose on the settings page that hosted tools are left out"
)
_TYPES = {
    "custom": "only functions are called: declare one with a parameter for the text",
}
# What runs at a provider and not at its client; versions of them have a date behind it.
_HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "computer", "mcp", "tool_search")


class DeclaredFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the client can call; `parameters` is the JSON Schema of its arguments."""

    name: DeclaredName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheHint = UNSET


class ChatTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function in Chat Completions."""

    type: Literal["function"]
    function: DeclaredFunction
    cache_control: CacheHint = UNSET


class ResponseTool(DeclaredFunction, kw_only=True, forbid_unknown_fields=True):
    """A function in Responses."""

    type: Literal["function"]
    defer_loading: Annotated[Anything, Wish(False)] = UNSET  # all are loaded from the beginning
    output_schema: Annotated[Anything, Wish()] = UNSET
    allowed_callers: Annotated[Anything, Only(["direct"])] = UNSET


class Namespace(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Functions in Responses under a name that they share. The model calls them by both names, and the calls are given
    back with both.
    """

    type: Literal["namespace"]
    name: DeclaredName
    description: Description | None = None
    tools: ToolList


class _Head(msgspec.Struct):
    type: str


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class ChatNamed(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """The named function has to be called, in Chat Completions."""

    function: _Named


class ResponseNamed(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """The named function has to be called, in Responses."""

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
    reading: Reading,
    *,
    parallel: bool | None,
) -> Tools | None:
    """Return what the fields `tools`, `tool_choice` and `parallel_tool_calls` ask for; None without tools."""
    found = [tuple(_functions(tool, kind, reading, f"tools[{index}]")) for index, tool in enumerate(given or ())]
    functions = tuple(function for one in found for function in one)
    if len(functions) > MAX_TOOLS:
        raise invalid("tools", f"'tools' has {len(functions)} functions: a request may have {MAX_TOOLS}.")
    mode, allowed = _chosen(choice)
    if not all(found) and not allowed:
        mode = loosened(mode, reading)
    once = parallel is False or isinstance(choice, ChatNamed | ResponseNamed)
    return checked(functions, mode, _whole_names(allowed, functions), once=once)


def checked(functions: tuple[Function, ...], mode: ToolMode, allowed: tuple[str, ...], *, once: bool) -> Tools | None:
    """Return the tools of a request, None without functions; refuse (400) what contradicts itself. `once` at most one
    call is made, as where the client names the function that has to be called.
    """
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
    return Tools(functions, mode, allowed, parallel=not once)


def loosened(mode: ToolMode, reading: Reading) -> ToolMode:
    """Return the mode where tools are left out: a call that has to be may have been meant for one of those."""
    if mode is not ToolMode.REQUIRED:
        return mode
    reading.wish("tool_choice")
    return ToolMode.AUTO


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


def is_left_out(kind: str, hosted: Sequence[str], reading: Reading, at: str) -> bool:
    """Return whether a tool of the type `kind`, which stands `at`, is a `hosted` one that the tenant leaves out."""
    named = next((name for name in hosted if kind == name or kind.startswith(f"{name}_")), None)
    if named is None or not reading.leaves_out_hosted:
        return False
    reading.wish(f"{at}.{named}")
    return True


def _functions(tool: msgspec.Raw, kind: type[ChatTool | ResponseTool], reading: Reading, at: str) -> Iterator[Function]:
    """Yield the functions that a tool is: none of a hosted one that is left out, several of a namespace."""
    head = decode(_Head, tool, at=at)
    if head.type == "namespace" and kind is ResponseTool:
        space = decode(Namespace, tool, at=at)
        about = space.description
        for index, inner in enumerate(space.tools):
            if decode(_Head, inner, at=f"{at}.tools[{index}]").type == "namespace":
                raise invalid(f"{at}.tools[{index}]", "A namespace has functions, and no namespaces.")
            for function in _functions(inner, ResponseTool, reading, f"{at}.tools[{index}]"):
                name = in_namespace(space.name, function.name)
                description = "\n".join(filter(None, (about, function.description)))
                yield replace(function, name=name, description=description, namespace=space.name)
                about = None  # which the model reads once
        return
    if head.type != "function":
        if not is_left_out(head.type, _HOSTED, reading, at):
            raise unsupported(f"{at}.type", f"{head.type[:64]!r}: {_TYPES.get(head.type, HOSTED)}")
        return
    given = decode(kind, tool, at=at)
    declared = given.function if isinstance(given, ChatTool) else given
    reading.check(given, f"{at}.")
    where = f"{at}.{'function.' if isinstance(given, ChatTool) else ''}parameters"
    schema = schema_text(declared.parameters, where)
    yield Function(declared.name, declared.description or "", schema, bool(declared.strict))


def _whole_names(chosen: tuple[str, ...], functions: tuple[Function, ...]) -> tuple[str, ...]:
    """Return the names of the `chosen` functions as the model has them: a client may say one without its namespace."""
    by_own: dict[str, list[str]] = {}
    for function in functions:
        by_own.setdefault(function.own_name, []).append(function.name)
    known = {function.name for function in functions}
    for name in chosen:
        if name not in known and len(by_own.get(name, ())) > 1:
            raise invalid(
                "tool_choice", f"'tool_choice' names {name[:64]!r}, of which 'tools' has several namespaces'."
            )
    return tuple(name if name in known else by_own.get(name, [name])[0] for name in chosen)


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
