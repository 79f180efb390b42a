"""What an answer with tools is held to: how much of it is read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from inference.errors import InvalidRequestError
from inference.text import tool_grammars
from inference.text.call_formats import FORMATS
from inference.text.tool_grammars import framed, guidance_of_tools
from inference.tools import Function, ToolMode, Tools
from inference.types import MAX_GUIDANCE_CHARACTERS, Guidance, GuidanceKind

SCHEMA = json.dumps({"type": "object", "description": "x" * (MAX_GUIDANCE_CHARACTERS // 4)})
ANSWER = Guidance(GuidanceKind.JSON_SCHEMA, SCHEMA, param="response_format")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are read as JSON."""
    read: list[str] = []

    def loads(text: str) -> Any:
        read.append(text)
        return json.loads(text)

    monkeypatch.setattr(tool_grammars, "json", SimpleNamespace(loads=loads, dumps=json.dumps))
    return read


def held(tools: Tools, answer: Guidance | None = None) -> Guidance | None:
    return guidance_of_tools(tools, FORMATS["hermes"], {}, answer=answer)


def functions(count: int, *, strict: bool = False) -> tuple[Function, ...]:
    return tuple(Function(f"f{number}", parameters=SCHEMA, strict=strict) for number in range(count))


@pytest.mark.parametrize(
    ("tools", "answer", "param"),
    [
        (Tools(functions(4), ToolMode.REQUIRED), None, "tool_choice"),
        (Tools(functions(4, strict=True)), None, "tools"),
        (Tools(functions(3, strict=True)), ANSWER, "response_format"),
    ],
    ids=["required", "strict", "json"],
)
def test_schemas_that_are_too_large_together_are_refused_unread(
    tools: Tools, answer: Guidance | None, param: str, read: list[str]
) -> None:
    """The reader of a worker's socket makes the grammar: renewals would wait for the reading of megabytes."""
    with pytest.raises(InvalidRequestError) as caught:
        held(tools, answer)
    assert (caught.value.code, caught.value.param) == ("guidance_too_complex", param)
    assert not read


def test_only_what_is_held_to_counts(read: list[str]) -> None:
    assert held(Tools((*functions(1, strict=True), *functions(9)[1:]))) is not None
    assert held(Tools(functions(8), ToolMode.REQUIRED, ("f1", "f2"))) is not None
    assert held(Tools(functions(3), ToolMode.REQUIRED), ANSWER) is not None  # no answer is that: each is a call
    assert read == [SCHEMA] * 6


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (Guidance(GuidanceKind.JSON_OBJECT), 'answer: %json {"type": "object"'),
        (Guidance(GuidanceKind.REGEX, "a/[0-9]"), r"answer: /a\/[0-9]/"),
        (Guidance(GuidanceKind.CHOICE, choices=("yes", "no")), 'answer: ("yes" | "no")'),
    ],
)
def test_an_answer_with_parts_is_held_in_its_text(answer: Guidance, rule: str) -> None:
    assert framed(answer, FORMATS["hermes"], {}) == answer
    told = framed(answer, FORMATS["harmony"], {"<|channel|>": 7})
    assert (told.kind, told.param) == (GuidanceKind.LARK, answer.param)
    assert 'start: ("<|start|>assistant")? <[7]> "final<|message|>" answer\n' in told.source
    assert rule in told.source


def test_a_grammar_cannot_hold_one_part_of_an_answer() -> None:
    answer = Guidance(GuidanceKind.LARK, 'start: "a"', param="structured_outputs.grammar")
    with pytest.raises(InvalidRequestError) as caught:
        framed(answer, FORMATS["harmony"], {})
    assert (caught.value.code, caught.value.param) == ("guidance_unsupported", answer.param)
