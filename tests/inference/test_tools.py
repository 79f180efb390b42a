"""Required calls and strict schemas on a tiny model, whose random weights never write a call by themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.grammar import Matcher
from inference.errors import InvalidRequestError
from inference.execution.backend import LoadedModel
from inference.guidance.thinking import ThinkingGrammar, Thought
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.text.byte_tokenizer import END_OF_TURN, VOCABULARY, ByteTokenizer
from inference.tools import Function, ToolMode, Tools
from inference.types import FinishReason, GenerationRequest, Guidance, GuidanceKind, SamplingParams
from tests.inference.tiny import save_tiny

SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
WEATHER = Function("weather", "The weather.", json.dumps(SCHEMA), strict=True)
ROUTE = Function("route", parameters=json.dumps({**SCHEMA, "x-guidance": {"lenient": True}}))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny(
        "llama",
        tmp_path_factory.mktemp("tools"),
        vocab_size=VOCABULARY + 5,
        eos_token_id=END_OF_TURN,
        max_position_embeddings=4096,
    )
    return load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=8192), threads=1)


def answer(loaded: LoadedModel, tools: Tools, format_: str, **sampling: Any) -> tuple[list[tuple[str, str]], Any]:
    """Return the calls of an answer that has no text, and how it ended."""
    calls, text, finished = told(loaded, tools, format_, **sampling)
    assert not text
    return calls, finished


def told(loaded: LoadedModel, tools: Tools, format_: str, **sampling: Any) -> tuple[list[tuple[str, str]], str, Any]:
    """Return the calls of an answer, its text, and how it ended."""
    config = EngineConfig("test", "-", block_size=loaded.block_size, options={"tools": format_})
    engine = LocalEngine(config, loaded, ByteTokenizer(), secret=b"s", clock=lambda: 0.0)
    params = SamplingParams(**{"max_tokens": 300, "seed": 7, **sampling})
    request = GenerationRequest("a", "t", "t", messages=(Message("user", ("hi",)),), tools=tools, sampling=params)
    engine.submit(engine.prepare(request))
    calls: list[Any] = []
    text, finished = "", None
    while engine.unfinished:
        for output in engine.step():
            text += output.text + "".join(part.text for part in output.told)
            for piece in (piece for part in output.told for piece in part.calls):
                if piece.name:
                    calls.append([piece.name, ""])
                calls[-1][1] += piece.arguments
            finished = output.finished or finished
    return [(name, arguments) for name, arguments in calls], text, finished


LOOSE = Function(
    "loose", parameters=json.dumps({**SCHEMA, "minProperties": 2, "if": {}, "pattern": "(?=a)", "x": {"pattern": 1}})
)


@pytest.mark.parametrize(("format_", "told"), [("hermes", ".if"), ("qwen3-coder", "")])
def test_of_functions_that_are_not_strict_what_cannot_be_held_is_left_out_and_named(
    loaded: LoadedModel, format_: str, told: str
) -> None:
    config = EngineConfig("test", "-", block_size=loaded.block_size, options={"tools": format_})
    engine = LocalEngine(config, loaded, ByteTokenizer(), secret=b"s", clock=lambda: 0.0)

    def not_enforced(function: Function, *, answer: Guidance | None = None, **tools: Any) -> tuple[str, ...]:
        request = GenerationRequest(
            "a",
            "t",
            "t",
            messages=(Message("user", ("hi",)),),
            tools=Tools((function,), **tools),
            sampling=SamplingParams(guidance=answer),
        )
        return engine.prepare(request).not_enforced

    at = "tools[].parameters"
    assert not_enforced(LOOSE, mode=ToolMode.REQUIRED) == (f"{at}.pattern", f"{at}{told}")
    assert not_enforced(LOOSE) == ()  # it is held to nothing, as was asked for
    answer = Guidance(GuidanceKind.JSON_SCHEMA, '{"not": {}}', strict=False, schema_at="text.format.schema")
    assert not_enforced(LOOSE, answer=answer) == ("text.format.schema.not",)
    with pytest.raises(InvalidRequestError):
        not_enforced(replace(LOOSE, strict=True))


@pytest.mark.parametrize("format_", ["generic", "llama3", "mistral-args", "qwen3-coder", "gemma4", "lfm2", "harmony"])
def test_a_named_function_is_called_by_its_schema(loaded: LoadedModel, format_: str) -> None:
    tools = Tools((WEATHER, ROUTE), ToolMode.REQUIRED, ("route",), parallel=False)
    calls, finished = answer(loaded, tools, format_)
    [(name, arguments)] = calls
    assert name == "route"
    read = json.loads(arguments)
    assert set(read) == {"unit", "days"}
    assert read["unit"] in {"c", "f"}
    assert 1 <= read["days"] <= 14
    assert finished.reason is FinishReason.STOP
    assert finished.usage.output < 300


def test_any_function_is_called_where_one_is_required(loaded: LoadedModel) -> None:
    for seed in range(4):
        tools = Tools((WEATHER, ROUTE), ToolMode.REQUIRED)
        calls, _ = answer(loaded, tools, "auto", seed=seed)
        assert calls
        assert {name for name, _ in calls} <= {"weather", "route"}


def test_nothing_is_held_without_need(loaded: LoadedModel) -> None:
    engine = LocalEngine(EngineConfig("test", "-", block_size=loaded.block_size), loaded, ByteTokenizer(), secret=b"s")

    def held(tools: Tools, **sampling: Any) -> Guidance | None:
        params = SamplingParams(**sampling)
        return engine.guidance_of(GenerationRequest("a", "t", "t", tools=tools, sampling=params))

    assert held(Tools((ROUTE,))) is None
    assert held(Tools((WEATHER,), ToolMode.NONE)) is None
    assert held(Tools((WEATHER,))) is not None
    wanted = Guidance(GuidanceKind.JSON_OBJECT, param="response_format")
    assert held(Tools((WEATHER,), ToolMode.NONE), guidance=wanted) == wanted
    with pytest.raises(InvalidRequestError) as caught:
        held(Tools((ROUTE,)), guidance=Guidance(GuidanceKind.REGEX, "a+", param="structured_outputs.regex"))
    assert (caught.value.code, caught.value.param) == ("guidance_unsupported", "structured_outputs.regex")


@pytest.mark.parametrize("format_", ["generic", "llama3", "mistral-args", "pythonic", "harmony"])
def test_an_answer_calls_or_is_json_by_its_schema(loaded: LoadedModel, format_: str) -> None:
    wanted = Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(SCHEMA), param="response_format")
    found = set()
    for seed in range(12):
        once = Tools((ROUTE,), parallel=False)
        calls, text, finished = told(loaded, once, format_, seed=seed, guidance=wanted, thinking_tokens=0)
        assert finished.reason is FinishReason.STOP
        assert bool(calls) != bool(text)
        found.add("called" if calls else "answered")
        if text:
            assert 1 <= json.loads(text)["days"] <= 14
    assert found == {"called", "answered"}
    required = Tools((ROUTE,), ToolMode.REQUIRED)
    calls, text, _ = told(loaded, required, format_, guidance=wanted, thinking_tokens=0)
    assert calls
    assert not text


@pytest.mark.parametrize(("setting", "param"), [("off", "tools")])
def test_a_deployment_may_take_no_tools(loaded: LoadedModel, setting: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        answer(loaded, Tools((ROUTE,)), setting)
    assert (caught.value.code, caught.value.param) == ("tools_not_supported", param)


def test_a_schema_that_cannot_be_held_is_refused(loaded: LoadedModel) -> None:
    broken = Function("f", parameters='{"type": "object", "unevaluatedProperties": false}', strict=True)
    with pytest.raises(InvalidRequestError) as caught:
        answer(loaded, Tools((broken,)), "auto")
    assert caught.value.code == "guidance_unsupported"
    assert caught.value.param == "tools"
    assert "unevaluatedProperties" in caught.value.message


class Only:
    """A grammar of one token for ever."""

    is_thought = False

    def __init__(self, token: int) -> None:
        self._token = token

    def begin(self) -> Matcher:
        return self

    def mask(self) -> bytes:
        return bytes(1 << self._token % 8 if place == self._token // 8 else 0 for place in range(4))

    def accept(self, token: int) -> None:
        assert token == self._token


def permitted(matcher: Matcher) -> list[int]:
    mask = matcher.mask()
    return [token for token in range(32) if mask[token // 8] >> token % 8 & 1]


def test_a_guided_model_thinks_first() -> None:
    thought = Thought((1,), (2,), is_open=False, budget=None, ends=frozenset({3}), vocabulary=32)
    matcher = ThinkingGrammar(thought, Only(9)).begin()
    assert permitted(matcher) == [1, 9]
    matcher.accept(1)
    assert permitted(matcher) == [token for token in range(32) if token != 3]
    for token in (5, 9, 2):
        matcher.accept(token)
    assert permitted(matcher) == [9]
    unthinking = ThinkingGrammar(thought, Only(9)).begin()
    unthinking.accept(9)
    assert permitted(unthinking) == [9]


def test_a_thought_ends_with_its_budget() -> None:
    thought = Thought((1,), (2, 4), is_open=True, budget=3, ends=frozenset({3}), vocabulary=32)
    matcher = ThinkingGrammar(thought, None).begin()
    for token in (5, 6, 7):
        assert len(permitted(matcher)) == 32
        matcher.accept(token)
    for token in (2, 4):
        assert permitted(matcher) == [token]
        matcher.accept(token)
    assert len(permitted(matcher)) == 32
    none = Thought((1,), (2,), is_open=False, budget=0, ends=frozenset({3}), vocabulary=32)
    assert permitted(ThinkingGrammar(none, Only(9)).begin()) == [9]
    assert 1 not in permitted(ThinkingGrammar(none, None).begin())


def test_a_schema_elsewhere_is_refused_as_one_that_is_not_looked_up(loaded: LoadedModel) -> None:
    there = Function("look", parameters='{"properties": {"x": {"$ref": "https://example.com/s"}}}')
    with pytest.raises(InvalidRequestError, match=r"'\$ref' to 'https://example.com/s' isn't supported") as refused:
        answer(loaded, Tools((there,), ToolMode.REQUIRED), "hermes")
    assert refused.value.code == "guidance_unsupported"
