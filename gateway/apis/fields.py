"""The request fields of each endpoint, made from the structs that decode them: what each takes and means, and whether
it is a demand that is held, a wish, or a demand that can't be held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.apis.chat import wire as chat
from gateway.apis.endpoints import ENDPOINTS
from gateway.apis.meanings import meaning_of
from gateway.apis.messages import blocks as message_blocks
from gateway.apis.messages import tools as message_tools
from gateway.apis.messages import wire as messages
from gateway.apis.ranking import wire as ranking
from gateway.apis.responses import input_items
from gateway.apis.responses import wire as responses
from gateway.apis.responses.endpoint import responses as responses_endpoint
from gateway.http.endpoint import Struct
from gateway.wire import parts, tools
from gateway.wire.demands import Only, Tried, Unread, Wish, inner_of, notes_of

# The structs inside a request whose kind is read later, and where in the request they stand.
INSIDE: Mapping[Struct, tuple[tuple[Struct, str], ...]] = {
    chat.ChatRequest: (
        (chat.UserTurn, "messages[]."),
        (chat.AssistantTurn, "messages[]."),
        (chat.ToolTurn, "messages[]."),
        (parts.TextPart, "messages[].content[]."),
        (parts.ImagePart, "messages[].content[]."),
        (tools.ChatTool, "tools[]."),
        (tools.DeclaredFunction, "tools[].function."),
    ),
    responses.ResponseRequest: (
        (input_items.MessageItem, "input[]."),
        (input_items.FunctionCallItem, "input[]."),
        (input_items.FunctionOutputItem, "input[]."),
        (input_items.ReasoningItem, "input[]."),
        (parts.InputText, "input[].content[]."),
        (parts.OutputTextPart, "input[].content[]."),
        (parts.InputImage, "input[].content[]."),
        (tools.ResponseTool, "tools[]."),
        (tools.Namespace, "tools[]."),
    ),
    messages.MessageRequest: (
        (messages.OutputConfig, "output_config."),
        (message_blocks.TextBlock, "messages[].content[]."),
        (message_blocks.ImageBlock, "messages[].content[]."),
        (message_blocks.ThinkingBlock, "messages[].content[]."),
        (message_blocks.ToolUseBlock, "messages[].content[]."),
        (message_blocks.ToolResultBlock, "messages[].content[]."),
        (message_blocks.DocumentBlock, "messages[].content[]."),
        (message_blocks.SearchResultBlock, "messages[].content[]."),
        (message_tools.MessageTool, "tools[]."),
    ),
    ranking.RerankRequest: ((ranking.RerankDocument, "documents[]."),),
}
WEBSOCKET, ITS_LIKE = "Create a response over a websocket", responses_endpoint.summary
REQUESTS: Mapping[str, Struct] = {
    one.summary: one.takes for one in ENDPOINTS if one.takes is not None and one.method == "POST"
} | {WEBSOCKET: responses.ResponseCreate}
"""The request of each endpoint that has a body, by the endpoint's summary."""

_NAMES = {"boolean": "true or false", "integer": "a whole number", "object": "an object", "value": "any value"}


class Row(NamedTuple):
    """A field: what becomes of it, what it takes, and its meaning in Markdown."""

    is_what: str
    takes: str
    meaning: str


DEMAND, REFUSED, WISH, TRIED, UNREAD = "demand", "refused", "wish", "wish, tried", "not read"


def rows(title: str) -> dict[str, Row]:
    """Return the fields of a request, its own before those inside them; of a websocket's those that the same over HTTP
    hasn't.
    """
    kind = REQUESTS[title]
    found: dict[str, Row] = {}
    for inner, at in ((kind, ""), *INSIDE.get(kind, ())):
        found = dict(_rows(inner, at)) | found  # where two have a field, the first says what it is
    known = rows(ITS_LIKE) if title == WEBSOCKET else {}
    ordered = sorted(found.items(), key=lambda row: ("." in row[0] or "[" in row[0], row[0]))
    return {name: row for name, row in ordered if known.get(name) != row}


def _rows(kind: Struct, at: str) -> Iterator[tuple[str, Row]]:
    notes = notes_of(kind)
    schemas, components = msgspec.json.schema_components([kind], ref_template="{name}")
    for name, schema in components[schemas[0]["$ref"]]["properties"].items():
        if name == kind.__struct_config__.tag_field:
            continue
        said, meaning = _said(schema), meaning_of(kind, name)
        match notes.get(name):
            case Only() as only:
                values = ", ".join(f"`{json.dumps(value)}`" for value in only.values)
                yield at + name, Row(REFUSED, f"only {values or 'null'}", only.told)
            case Wish():
                yield at + name, Row(WISH, said, meaning)
            case Tried():
                yield at + name, Row(TRIED, said, meaning)
            case Unread():
                yield at + name, Row(UNREAD, said, meaning)
            case _:
                yield at + name, Row(DEMAND, said, meaning)
    for name, inner in inner_of(kind).items():
        if len(inner) == 1:
            yield from _rows(inner[0], f"{at}{name}.")


def _said(schema: Mapping[str, Any]) -> str:
    """Return in words what a field of that JSON schema takes."""
    if "anyOf" in schema:
        kinds = [_said(one) for one in schema["anyOf"] if one != {"type": "null"}]
        return ", or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return "an object"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind = schema.get("type", "value")
    if kind == "array":
        return f"a list{_bounds(schema, 'Items')}: {_said(schema.get('items', {}))}"
    if kind == "string":
        return f"text{_bounds(schema, 'Length')}"
    return _NAMES.get(kind, f"a {kind}") + _range(schema)


def _bounds(schema: Mapping[str, Any], of: str) -> str:
    most = schema.get(f"max{of}")
    unit = " characters" if of == "Length" else ""
    return "" if most is None else f" (at most {most:,}{unit})"


def _range(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f" from {least:,} to {most:,}"
    return "" if least is None else f" from {least:,} on"
