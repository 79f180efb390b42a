"""Arguments that are no object in JSON are held to their schema: what the grammar permits is what the schema does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.errors import InvalidRequestError
from inference.text.call_formats import FORMATS
from inference.text.tool_grammars import guidance_of_tools
from inference.tools import Function, ToolMode, Tools
from tests.inference.text.formats import Chat, matcher, saved, written

NODE = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"], "additionalProperties": False}
CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [  # a property's schema, and values that fit it and don't
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "abcd", "é🙂"], ["a", "abcde"]),
    ({"type": "string", "pattern": "^[a-z]+/[0-9]{2}$"}, ["ab/12"], ["ab/1", "xab/123", "AB/12"]),
    ({"type": "string", "pattern": "[0-9]{2}"}, ["a12b"], ["a1b"]),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["2024-13-01", "today"]),
    ({"type": "string", "enum": ["red", "dark blue"]}, ["red", "dark blue"], ["blue"]),
    ({"enum": ["red", 1, None]}, ["red", 1, None], ["blue", 2]),
    ({"const": "x"}, ["x"], ["y"]),
    ({"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}, ["a", None], ["b", 1]),
    ({"type": ["integer", "null"]}, [3, None], [True, "x"]),
    ({"type": "boolean"}, [True, False], ["yes"]),
    ({"$ref": "#/$defs/node"}, [{"at": 1}], [{"at": "x"}, {}, {"at": 1, "to": 2}]),
    ({"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1, "maxItems": 2}, [[{"at": 1}]], [[], [1]]),
    ({"type": "array", "items": {"type": "string"}}, [[], ["a"], ["a", "b", "c"]], [[1]]),
    ({}, ["x", 1, [1, {"a": "b"}], {"a": [True]}, None], []),
]


@pytest.fixture(scope="module", params=["qwen3-coder", "glm", "deepseek-v3.2", "gemma4", "lfm2"])
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chat:
    pytest.importorskip("llguidance")
    return saved(request.param, tmp_path_factory.mktemp("held"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case[0])[:60])
def test_a_value_is_held_to_its_schema(chat: Chat, case: tuple[dict[str, Any], list[Any], list[Any]]) -> None:
    given, fitting, others = case
    matches = matcher(chat, {"properties": {"value": given}, "required": ["value"], "$defs": {"node": NODE}})
    for value in fitting:
        assert matches(written(chat, "", ("look.up-2", {"value": value}))), value
    for value in others:
        assert not matches(written(chat, "", ("look.up-2", {"value": value}))), value


def test_what_is_not_required_may_be_left_out(chat: Chat) -> None:
    texts = {key: {"type": "string"} for key in ("a", "b", "c")}
    matches = matcher(chat, {"properties": texts, "required": ["b"], "additionalProperties": False})
    for keys in ("b", "ab", "bc", "abc"):
        assert matches(written(chat, "", ("look.up-2", dict.fromkeys(keys, "x"))))
    for keys in ("", "a", "ac"):
        assert not matches(written(chat, "", ("look.up-2", dict.fromkeys(keys, "x"))))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"type": "string", "contentEncoding": "base64"}}}, "'contentEncoding'"),
        ({"properties": {"a": {"type": "string", "format": "hostname"}}}, "'hostname'"),
        ({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "the pattern"),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "null"}]}}}, "'oneOf'"),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#/properties/a"}}}}, "'$ref'"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#/$defs/b"}}}, "never end"),
        ({"properties": {"a>b": {}}}, "'a>b'"),
        ({"anyOf": [{"required": ["a"]}]}, "'anyOf'"),
        ({"additionalProperties": {"type": "integer"}}, "additionalProperties"),
        ({"properties": []}, "can't be read"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(schema: dict[str, Any], problem: str) -> None:
    strict = Function("f", parameters=json.dumps(schema), strict=True)
    for name in ("qwen3-coder", "gemma4"):
        with pytest.raises(InvalidRequestError) as caught:
            guidance_of_tools(Tools((strict,), ToolMode.REQUIRED), FORMATS[name], {})
        assert caught.value.param == "tools"
        assert problem in caught.value.message
        if caught.value.code == "guidance_unsupported":
            loose = Tools((replace(strict, strict=False),), ToolMode.REQUIRED)
            guidance = guidance_of_tools(loose, FORMATS[name], {})
            assert guidance is not None
            assert guidance.not_enforced(()) == ("tools[].parameters",)


def test_a_schema_that_leads_to_itself_is_bounded(tmp_path: Path) -> None:
    node = {"type": "object", "properties": {key: {"$ref": "#/$defs/node"} for key in ("left", "right")}}
    schema = json.dumps({"properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})
    with pytest.raises(InvalidRequestError, match=r"nested too deeply|its size"):
        function = Function("f", parameters=schema, strict=True)
        guidance_of_tools(Tools((function,), ToolMode.REQUIRED), FORMATS["gemma4"], {})
