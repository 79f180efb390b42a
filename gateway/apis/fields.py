"""The request fields of each API as a table, made from the structs that decode them: what each takes, and whether it is
a demand that is held, a wish, or a demand that can't be held.

python -m gateway.apis.fields      writes the tables of docs/fields.md anew
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.apis.chat import wire as chat
from gateway.apis.classification import wire as classification
from gateway.apis.completions import wire as completions
from gateway.apis.embeddings import wire as embeddings
from gateway.apis.messages import blocks as message_blocks
from gateway.apis.messages import tools as message_tools
from gateway.apis.messages import wire as messages
from gateway.apis.ranking import wire as ranking
from gateway.apis.responses import input_items
from gateway.apis.responses import wire as responses
from gateway.apis.tokenize import wire as tokenize
from gateway.wire import parts, tools
from gateway.wire.demands import Only, Tried, Unread, Wish, inner_of, notes_of

Struct = type[msgspec.Struct]

# The structs of each API's request, and where in a request they stand.
APIS: Mapping[str, tuple[tuple[Struct, str], ...]] = {
    "Chat Completions": (
        (chat.ChatRequest, ""),
        (chat.UserTurn, "messages[]."),
        (chat.AssistantTurn, "messages[]."),
        (chat.ToolTurn, "messages[]."),
        (parts.TextPart, "messages[].content[]."),
        (parts.ImagePart, "messages[].content[]."),
        (tools.ChatTool, "tools[]."),
        (tools.DeclaredFunction, "tools[].function."),
    ),
    "Completions": ((completions.CompletionRequest, ""),),
    "Responses": (
        (responses.ResponseRequest, ""),
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
    "Responses over a websocket": ((responses.ResponseCreate, ""),),
    "Messages": (
        (messages.MessageRequest, ""),
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
    "Input tokens of a response": ((responses.InputTokensRequest, ""),),
    "Embeddings": ((embeddings.EmbeddingRequest, ""),),
    "Tokenize": ((tokenize.TokenizeRequest, ""),),
    "Rerank": ((ranking.RerankRequest, ""), (ranking.RerankDocument, "documents[].")),
    "Classify": ((classification.ClassifyRequest, ""),),
    "Score": ((ranking.ScoreRequest, ""),),
}
BESIDE = {"Responses over a websocket": "Responses"}  # whose fields it has too: only others are listed

PAGE = Path(__file__).resolve().parents[2] / "docs/fields.md"
_NAMES = {"boolean": "true or false", "integer": "a whole number", "object": "an object", "value": "any value"}
_TABLE = re.compile(r"(<!-- fields: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


class Row(NamedTuple):
    """A field: what becomes of it, and what it takes."""

    is_what: str
    takes: str


DEMAND, REFUSED, WISH, TRIED, UNREAD = "demand", "refused", "wish", "wish, tried", "not read"


def rows(api: str) -> dict[str, Row]:
    """Return the fields of an API, those left out that the API has which it stands beside."""
    found: dict[str, Row] = {}
    for kind, at in APIS[api]:
        found = dict(_rows(kind, at)) | found  # where two have a field, the first says what it is
    known = rows(BESIDE[api]) if api in BESIDE else {}
    return {name: row for name, row in found.items() if known.get(name) != row}


def written(page: str) -> str:
    """Return the documentation `page` with the tables as the structs are now."""
    return _TABLE.sub(lambda match: f"{match[1]}{_table(match[2])}{match[3]}", page)


def _table(api: str) -> str:
    ordered = sorted(rows(api).items(), key=_order)
    lines = "".join(f"| `{name}` | {row.is_what} | {row.takes} |\n" for name, row in ordered)
    return f"\n| field | is | takes |\n|---|---|---|\n{lines}\n"


def _order(row: tuple[str, Row]) -> tuple[bool, str]:
    return "." in row[0] or "[" in row[0], row[0]  # a request's own fields come first


def _rows(kind: Struct, at: str) -> Iterator[tuple[str, Row]]:
    notes = notes_of(kind)
    schemas, components = msgspec.json.schema_components([kind], ref_template="{name}")
    for name, schema in components[schemas[0]["$ref"]]["properties"].items():
        if name == kind.__struct_config__.tag_field:
            continue
        match notes.get(name):
            case Only() as only:
                values = ", ".join(f"`{json.dumps(value)}`" for value in only.values)
                yield at + name, Row(REFUSED, f"only {values or 'null'}")
            case Wish():
                yield at + name, Row(WISH, _said(schema))
            case Tried():
                yield at + name, Row(TRIED, _said(schema))
            case Unread():
                yield at + name, Row(UNREAD, _said(schema))
            case _:
                yield at + name, Row(DEMAND, _said(schema))
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


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
