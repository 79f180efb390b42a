"""The request fields of each API as tables, made from the structs that decode them.

python -m gateway.wire.fields      writes the tables of docs/fields.md anew
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.wire import (
    chat,
    classification,
    completions,
    embeddings,
    input_items,
    message_blocks,
    message_tools,
    messages,
    parts,
    ranking,
    responses,
    tokenize,
    tools,
)
from gateway.wire.common import Only, neutral_fields

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
_NAMES = {"boolean": "true or false", "integer": "a whole number", "object": "an object"}
_TABLE = re.compile(r"(<!-- fields: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def honoured(api: str) -> dict[str, str]:
    """Return the fields of an API that are honoured, with what each takes."""
    return _beside(api, dict(_described(api)), honoured)


def neutral(api: str) -> dict[str, list[str]]:
    """Return the fields of an API that are taken only at a value which asks for nothing, with these values as JSON."""
    found = {name: note.shown for kind, at in APIS[api] for name, note in _only(kind, at)}
    return _beside(api, found, neutral)


def written(page: str) -> str:
    """Return the documentation `page` with the tables as the structs are now."""
    return _TABLE.sub(lambda match: f"{match[1]}{_tables(match[2])}{match[3]}", page)


def _tables(api: str) -> str:
    def table(head: str, rows: Mapping[str, str]) -> str:
        lines = "".join(f"| `{name}` | {text} |\n" for name, text in sorted(rows.items(), key=_order))
        return f"\n| field | {head} |\n|---|---|\n{lines}\n" if rows else ""

    none = {name: ", ".join(f"`{value}`" for value in values) or "only null" for name, values in neutral(api).items()}
    return table("takes", honoured(api)) + table("not supported; taken at", none)


def _order(row: tuple[str, str]) -> tuple[bool, str]:
    return "." in row[0] or "[" in row[0], row[0]  # a request's own fields come first


def _beside(api: str, found: dict[str, Any], of: Any) -> dict[str, Any]:
    known = of(BESIDE[api]) if api in BESIDE else {}
    return {name: value for name, value in found.items() if known.get(name) != value}


def _only(kind: Struct, at: str) -> Iterator[tuple[str, Only]]:
    for name, note in neutral_fields(kind).items():
        if isinstance(note, Only):
            yield at + name, note
        else:
            yield from _only(note, f"{at}{name}.")


def _described(api: str) -> Iterator[tuple[str, str]]:
    for kind, at in APIS[api]:
        only = {name for name, note in neutral_fields(kind).items() if isinstance(note, Only)}
        schemas, components = msgspec.json.schema_components([kind], ref_template="{name}")
        properties = components[schemas[0]["$ref"]]["properties"]
        for name, schema in properties.items():
            if name not in only and name != kind.__struct_config__.tag_field:
                yield at + name, _said(schema)


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
