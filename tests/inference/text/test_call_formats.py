"""Each format of calls, from a chat template to the answer that is read: the same calls, whatever stands in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inference.config import TOOLS
from inference.messages import Message, ToolCall, ToolResult
from inference.text.answer import AnswerParser, Parsing
from inference.text.call_formats import FORMATS, shaped
from inference.text.chats import Chats
from inference.text.tokenizer import FolderTokenizer
from inference.tools import Tools
from inference.types import GenerationRequest
from tests.inference.text.call_templates import CALLS, HEAD, TAIL, template_of
from tests.inference.text.folders import save_tokenizer
from tests.inference.text.formats import SCHEMA, TOOLS_GIVEN, Chat, matcher, saved, told, written

HARD: dict[str, Any] = {
    "text": 'It\'s "so" \\ {x} <b>é 日本 🙂</b>\n\tand 7, [1]; "}',
    "count": -12,
    "share": 0.5,
    "is_so": True,
    "more": {"a": [1, {"b": "]}"}, None], "c": "x, y: z"},
    "list": ["3", 3, "true"],
}
LIKE_OTHERS = {"text": "12", "share": None, "is_so": False, "list": [], "more": {}}


@pytest.fixture(scope="module", params=list(FORMATS))
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chat:
    """A model of one format, whose marks are control tokens."""
    return saved(request.param, tmp_path_factory.mktemp("formats"))


def read(chat: Chat, pieces: Sequence[str], **tools: Any) -> tuple[str, list[tuple[str, str]]]:
    given = Tools(TOOLS_GIVEN.functions, **tools)
    parsing = chat[0].parsing(GenerationRequest("a", "t", "t", tools=given), "")
    assert parsing is not None
    return read_as(parsing, pieces)


def read_as(parsing: Parsing, pieces: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    parser = AnswerParser(parsing, "request")
    text, calls = "", dict[int, list[str]]()
    for piece in (*pieces, None):
        parser.finish() if piece is None else parser.push(piece)
        for part in parser.take():
            text += part.text
            for call in part.calls:
                one = calls.setdefault(call.index, ["", ""])
                one[0] += call.name
                one[1] += call.arguments
    return text, [(name, arguments) for name, arguments in calls.values()]


def parsed(calls: Sequence[tuple[str, str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def test_every_format_has_an_excerpt_and_can_be_set() -> None:
    assert set(CALLS) == set(FORMATS)
    assert ("auto", "generic", "off", *FORMATS) == TOOLS


def test_a_format_is_recognised_by_what_its_template_writes(chat: Chat, request: pytest.FixtureRequest) -> None:
    chats, _ = chat
    assert chats.calls is not None
    assert not chats.is_generic
    assert chats.calls.name == request.node.callspec.params["chat"]
    assert chats.is_single == ("one call in each turn" in template_of(chats.calls.name))


@pytest.mark.parametrize("given", [HARD, LIKE_OTHERS, {}], ids=["hard", "like others", "none"])
def test_what_a_template_writes_is_what_is_read(chat: Chat, given: dict[str, Any]) -> None:
    text = written(chat, "", ("look.up-2", given))
    whole = read(chat, [text])
    assert parsed(whole[1]) == [("look.up-2", given)]
    assert not whole[0].strip()
    assert read(chat, list(text)) == whole


def test_text_and_several_calls(chat: Chat) -> None:
    chats, _ = chat
    assert chats.calls is not None
    calls = [("look.up-2", {"text": "a"}), ("nothing", {}), ("look.up-2", {"count": 2})]
    calls = calls[:1] if chats.is_single else calls
    before = "" if chats.calls.begins else "I'll look: <tool"
    text = written(chat, before, *calls)
    whole = read(chat, [text])
    assert (whole[0].rstrip(), parsed(whole[1])) == (before, calls)
    assert read(chat, list(text)) == whole
    assert parsed(read(chat, list(text), parallel=False)[1]) == calls[:1]


def test_functions_that_there_are_not_are_text(chat: Chat) -> None:
    text = written(chat, "", ("unknown", {"text": "a"}))
    found = read(chat, [text])
    assert not found[1]
    assert "unknown" in found[0]
    assert read(chat, list(text)) == found


def test_results_and_calls_before_them_are_told(chat: Chat) -> None:
    calls = [ToolCall("first-id", "look.up-2", '{"text": "one"}'), ToolCall("second-id", "nothing", "{}")]
    results = [Message("tool", (ToolResult(call.id, (f"Result of {call.id}.",)),)) for call in calls]
    text = told(chat, [Message("user", ("Hi",)), Message("assistant", ("", *calls)), *results])
    places = [text.index(part) for part in ("Result of first-id.", "Result of second-id.")]
    assert places == sorted(places)
    assert chat[0].calls is not None
    if (identify := chat[0].calls.identify) is not None:  # then calls and their results have the ids that are wanted
        for number, call in enumerate(calls):
            assert f"{identify(call.id, call.name, number)}: Result of {call.id}." in text
    if chat[0].is_single:  # then each result stands behind its own call
        assert text.index("nothing", text.index("assistant\n")) > places[0]


def test_a_required_call_is_held_to_what_the_template_writes(chat: Chat) -> None:
    pytest.importorskip("llguidance")
    matches = matcher(chat, {**SCHEMA, "required": ["text"], "additionalProperties": False})
    assert matches(written(chat, "", ("look.up-2", {"text": "Oslo", "count": 7, "more": {"a": 1}, "list": ["x", 2]})))
    assert matches(written(chat, "", ("look.up-2", {"text": "Oslo"})))
    assert matches(written(chat, "", ("nothing", {})))
    assert not matches(written(chat, "", ("look.up-2", {"count": 7})))
    assert not matches(written(chat, "", ("look.up-2", {"text": "Oslo", "count": "many"})))
    assert not matches(written(chat, "", ("look.up-2", {"text": "Oslo", "other": 1})))
    assert not matches(written(chat, "", ("unknown", {})))


def test_a_template_that_writes_nothing_known_gets_the_prompt_of_ours(tmp_path: Any, caplog: Any) -> None:
    save_tokenizer(tmp_path, template_of("hermes").replace("<tool_call>", "<unheard of>"))
    tokenizer = FolderTokenizer(tmp_path)
    chats = Chats.of(tokenizer.template, {}, tokenizer)
    assert chats.is_generic
    assert "our own prompt" in caplog.text


def test_harmony_tells_thought_text_and_calls_apart() -> None:
    harmony = FORMATS["harmony"]
    chats = Chats.of("", {"tools": "harmony"})
    parsing = chats.parsing(
        GenerationRequest("a", "t", "t", messages=(Message("user", ("Hi",)),)), "<|start|>assistant"
    )
    assert parsing is not None
    assert parsing.silent == harmony.silent
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I'll look.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>final<|message|>So."
    )
    for pieces in ([text], list(text)):
        parser = AnswerParser(parsing, "request")
        parts = []
        for piece in pieces:
            parser.push(piece)
            parts += parser.take()
        parser.finish()
        parts += parser.take()
        assert "".join(part.reasoning for part in parts) == "Hm.Well."
        assert "".join(part.text for part in parts) == "I'll look.So."


@pytest.mark.parametrize("name", ["granite", "lfm2"])
def test_calls_are_text_where_a_template_has_no_place_for_them(name: str, tmp_path: Path) -> None:
    """The format is known by the marks in its vocabulary."""
    template = f"{HEAD}{TAIL}".replace("{% set calls = m.tool_calls or [] %}", "")
    save_tokenizer(tmp_path, template, shaped(f"{FORMATS[name].first}{FORMATS[name].section[1]}"))
    tokenizer = FolderTokenizer(tmp_path)
    chat = Chats.of(tokenizer.template, {}, tokenizer), tokenizer
    assert (chat[0].calls, chat[0].is_generic, chat[0].has_place) == (FORMATS[name], False, False)
    text = written(chat, "I'll look.", ("look.up-2", LIKE_OTHERS), ("nothing", {}))
    found = read(chat, list(text))
    assert (found[0].strip(), parsed(found[1])) == ("I'll look.", [("look.up-2", LIKE_OTHERS), ("nothing", {})])


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        (
            "qwen3-coder",
            "<tool_call><function=f><parameter=a>\n\n x \n\n</parameter></function></tool_call>",
            {"a": "\n x \n"},
        ),
        ("qwen3-coder", "<tool_call><function=f><parameter=b>None</parameter></function></tool_call>", {"b": None}),
        (
            "qwen3-coder",
            "<tool_call><function=f><parameter=b>{'x': True}</parameter></function></tool_call>",
            {"b": {"x": True}},
        ),
        (
            "qwen3-coder",
            "<tool_call><function=f><parameter=b>no JSON</parameter></function></tool_call>",
            {"b": "no JSON"},
        ),
        ("qwen3-coder", "<tool_call><function=f><parameter=a>7</parameter></function></tool_call>", {"a": "7"}),
        ("qwen3-coder", "<tool_call><function=f><parameter=c>7</parameter></function></tool_call>", {"c": 7}),
        (
            "pythonic",
            "[f(a='it\\'s \\x41\\u00e9\\n', b=(1, None), c={'k': True})]",
            {"a": "it's Aé\n", "b": [1, None], "c": {"k": True}},
        ),
        (
            "kimi",
            '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:17<|tool_call_argument_begin|>{"a": "x"}',
            {"a": "x"},
        ),
    ],
)
def test_values_in_other_words(name: str, text: str, wanted: dict[str, Any]) -> None:
    """What models write beside what their templates do: Python's words, one line break too many, other numbers."""
    parsing = Parsing(
        calls=FORMATS[name], functions={"f": {"a": frozenset({"string"}), "b": frozenset({"object", "null"})}}
    )
    for pieces in ([text], list(text)):
        assert parsed(read_as(parsing, pieces)[1]) == [("f", wanted)]
