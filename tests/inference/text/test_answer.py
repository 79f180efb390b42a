"""Answers read while they come: thought, text and calls of each format, however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.answer import AnswerParser, Markers, Parsing
from inference.text.call_formats import FORMATS
from inference.text.call_reader import Kinds

FUNCTIONS: dict[str, Kinds] = {"f": {}, "find": {}}
THINK = Markers("<think>", "</think>")
F1 = ("f", '{"a": 1}')
FIND = ("find", "{}")
BRACKETS = '{"what": "it\\n\\"}", "in": [1, {"a": "]"}], "é": null}'

Case = tuple[str, str, str, str, list[tuple[str, str]]]  # format, text; then thought, text and calls
CASES: list[Case] = [
    ("hermes", "Plain text, no call. \n", "", "Plain text, no call. \n", []),
    ("hermes", ' Look:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n', "", " Look:", [F1]),
    ("hermes", f'<tool_call>{{"name": "find", "arguments": {BRACKETS}}}</tool_call>', "", "", [("find", BRACKETS)]),
    ("hermes", '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>', "", "", [F1]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "", [F1]),
    ("hermes", '<tool_call>{"name": "find", "arguments": null}</tool_call>', "", "", [FIND]),
    ("hermes", '<tool_call>{"name": "find"}</tool_call> done', "", " done", [FIND]),
    ("hermes", '<tool_call>{"id": 7, "name": "find", "arguments": {}}\n{"name": "find"}', "", "", [FIND] * 2),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "find"}]</tool_call>', "", "", [F1, FIND]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}', "", "", [("f", '{"a": "x\\ny"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}\n<tool_call>{"name":"find"}', "", "", [F1, FIND]),
    ("hermes", "a <tool_call>oops</tool_call> b", "", "a <tool_call>oops</tool_call> b", []),
    ("hermes", '<tool_call>{"name": "g", "arguments": {}}', "", '<tool_call>{"name": "g", "arguments": {}}', []),
    ("hermes", "<tool_call>[1]", "", "<tool_call>[1]", []),
    ("hermes", "<<tool_call>x <tool_", "", "<<tool_call>x <tool_", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", "", [("f", '{"a": 1')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1]', "", "]", [("f", '{"a": 1')]),
    ("hermes", "<think>\nWhy <b>?\n</think>\n\nSo. <think>", "Why <b>?", "So. <think>", []),
    ("hermes", '\n<think>Hm</think><tool_call>{"name": "find"}</tool_call>', "Hm", "", [FIND]),
    ("hermes", "<think>Never endin", "Never endin", "", []),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}; {"name": "find"}', "", "", [F1, FIND]),
    ("llama3", '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}', "", "", [F1]),
    ("llama3", '{"city": "Oslo", "name": "f"}', "", '{"city": "Oslo", "name": "f"}', []),
    ("llama3", 'See {"name": "f", "parameters": {}}', "", 'See {"name": "f", "parameters": {}}', []),
    ("llama3", '<|python_tag|>find.call(query="x")', "", '<|python_tag|>find.call(query="x")', []),
    ("mistral", 'A[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": 1}, {"name": "find"}]', "", "A", [F1, FIND]),
    ("mistral-args", '[TOOL_CALLS]f[CALL_ID]12[ARGS]{"a": 1}[TOOL_CALLS]find{}', "", "", [F1, FIND]),
    ("mistral-args", "[TOOL_CALLS]g[ARGS]{}", "", "[TOOL_CALLS]g[ARGS]{}", []),
]  # fmt: skip


def read(parsing: Parsing, pieces: Sequence[str]) -> tuple[str, str, list[tuple[str, str]], AnswerParser]:
    """Return thought, text and calls of an answer that comes in `pieces`."""
    parser = AnswerParser(parsing, "request")
    told = []
    for piece in pieces:
        parser.push(piece)
        told += parser.take()
    parser.finish()
    told += parser.take()
    calls: list[Any] = []
    for piece in (piece for part in told for piece in part.calls):
        if piece.name:
            assert piece.id.startswith("call_")
            calls.append([piece.name, ""])
        calls[-1][1] += piece.arguments
    text, thought = ("".join(getattr(part, name) for part in told) for name in ("text", "reasoning"))
    return thought, text, [(name, arguments) for name, arguments in calls], parser


def parsing_of(name: str, **more: Any) -> Parsing:
    return Parsing(THINK, calls=FORMATS[name], functions=FUNCTIONS, silent=FORMATS[name].silent, **more)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}: {case[1][:40]}")
def test_answers_of_each_format(case: Case) -> None:
    name, text, *wanted = case
    assert list(read(parsing_of(name), [text])[:3]) == wanted
    assert list(read(parsing_of(name), list(text))[:3]) == wanted


@settings(deadline=None)
@given(st.data())
def test_every_cut_gives_the_same(data: st.DataObject) -> None:
    name, text, *wanted = data.draw(st.sampled_from(CASES))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert list(read(parsing_of(name), pieces)[:3]) == wanted


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>", "f", "find", "é",
    '{"name": "f"', ', "arguments": ', '{"a": [1, "]"]}', *'{}[]"\\:,; \n', "\x00", "1e5", "null",
]  # fmt: skip


@settings(deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)), st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.booleans(), st.booleans()
)
def test_nothing_raises_and_cuts_never_matter(name: str, fragments: list[str], thinks: bool, once: bool) -> None:
    parsing, text = parsing_of(name, thinks=thinks, once=once), "".join(fragments)
    whole = read(parsing, [text])[:3]
    assert read(parsing, fragments)[:3] == whole
    assert read(parsing, list(text))[:3] == whole
    assert len(whole[2]) <= 1 or not once


@pytest.mark.parametrize(
    "text",
    [
        r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>',
        r'<tool_call>{"arguments": "{\"a\": \"\ud800\"}", "name": "f"}</tool_call>',
    ],
)
def test_a_string_of_arguments_with_half_a_character_is_no_call(text: str) -> None:
    assert read(parsing_of("hermes"), [text])[:3] == ("", text, [])


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)))
def test_arguments_are_as_they_were_written(arguments: dict[str, Any]) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert read(parsing_of("hermes"), list(text))[:3] == ("", "", [("f", written)])


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("hermes", "Look:\n<tool", ("Look:", [])),
        ("hermes", '\n<tool_call>\n{"na', ("", [])),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', ("", [("f", '{"a": 1')])),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool', ("", [F1])),
        ("hermes", "a <", ("a <", [])),
        ("hermes", "<tool_call>oops</tool_call> b", ("<tool_call>oops</tool_call> b", [])),
        ("llama3", '{"name": "fi', ("", [])),
        ("mistral", "[TOOL_CA", ("", [])),
    ],
)
def test_the_beginning_of_a_call_in_which_an_answer_was_cut_is_no_text(name, text, wanted) -> None:
    parser = AnswerParser(parsing_of(name), "request")
    parser.push(text)
    parser.finish(is_cut=True)
    told = parser.take()
    calls = [[piece.name, piece.arguments] for part in told for piece in part.calls]
    assert ("".join(part.text for part in told), [tuple(call) for call in calls]) == wanted


def test_an_answer_with_one_call_is_over_behind_it() -> None:
    text = '<tool_call>{"name": "find"}</tool_call><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    *read_, parser = read(parsing_of("hermes", once=True), [text])
    assert read_ == ["", "", [FIND]]
    assert parser.is_over


def test_a_thought_that_the_prompt_began() -> None:
    assert read(Parsing(THINK, thinks=True), ["So", " it is.\n</th", "ink>\n\nYes."])[:3] == ("So it is.", "Yes.", [])


def test_text_that_is_no_opener_is_told_at_once() -> None:
    parser = AnswerParser(Parsing(THINK), "request")
    parser.push("Yes")
    parser.take()
    for piece in (" it", " <is>", "\n", " so"):
        parser.push(piece)
        assert [told.text for told in parser.take()] == [piece]
