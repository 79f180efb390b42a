"""docs/fields.md lists exactly the fields that are taken only at a value which changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from gateway.edge.wire.chat import AssistantTurn, ChatRequest
from gateway.edge.wire.common import Only, neutral_fields
from gateway.edge.wire.embeddings import EmbeddingRequest
from gateway.edge.wire.input_items import FunctionCallItem, MessageItem, ReasoningItem
from gateway.edge.wire.parts import ImagePart, InputImage, InputText, OutputText, TextPart
from gateway.edge.wire.responses import ResponseCreate, ResponseRequest

PAGE = Path(__file__).resolve().parents[3] / "docs/fields.md"
SECTIONS = {
    "Chat Completions": (
        (ChatRequest, ""),
        (AssistantTurn, "messages[]."),
        (TextPart, "messages[].content[]."),
        (ImagePart, "messages[].content[]."),
    ),
    "Responses": (
        (ResponseRequest, ""),
        (MessageItem, "input[]."),
        (FunctionCallItem, "input[]."),
        (ReasoningItem, "input[]."),
        (InputText, "input[].content[]."),
        (OutputText, "input[].content[]."),
        (InputImage, "input[].content[]."),
    ),
    "Responses over a websocket": ((ResponseCreate, ""),),
    "Embeddings": ((EmbeddingRequest, ""),),
}
ROW = re.compile(r"^\| `([^`]+)` \| (.+) \|$", re.MULTILINE)


def rows(kind: type[msgspec.Struct], at: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, note in neutral_fields(kind).items():
        if isinstance(note, Only):
            found[at + name] = ", ".join(f"`{json.dumps(value)}`" for value in note.values) or "only null"
        else:
            found |= rows(note, f"{at}{name}.")
    return found


def wanted(section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, at in SECTIONS[section]:
        found |= rows(kind, at)
    if section == "Responses over a websocket":
        found = {name: value for name, value in found.items() if rows(ResponseRequest, "").get(name) != value}
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_page_lists_the_fields_of_each_api(section):
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    assert dict(ROW.findall(text)) == wanted(section)
