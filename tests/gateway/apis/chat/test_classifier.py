"""Chats that a classifier answers: by name over every API, with the label as the answer, metered as it classifies."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from inference.errors import InvalidRequestError
from inference.types import FinishReason, Kind
from tests.gateway.apis.client import ask, assert_error

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
INSTRUCTION = "Classify the ticket. Labels: red, blue."
TICKET = "my blue car"
BODY = {"model": "sorter", "messages": [{"role": "user", "content": f"{INSTRUCTION}\n\n{TICKET}"}]}
USAGE = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}  # three words, and two labels


def object_of(value):
    return {"type": "object", "properties": {"topic": value}, "required": ["topic"], "additionalProperties": False}


def schema(value):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


async def test_label_is_the_answer_and_costs_what_classifying_does(app, world):
    answer = await ask(app, CHAT, BODY)
    assert answer.status == 200, answer.body
    body = answer.json()
    assert (body["object"], body["model"]) == ("chat.completion", "sorter")
    [choice] = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("blue", "stop")
    assert body["usage"].items() >= USAGE.items()
    classified = await ask(app, "/v1/classify", {"model": "sorter", "input": TICKET, "labels": ["red", "blue"]})
    assert body["usage"]["credits"] == classified.json()["usage"]["credits"] == "0.000012"
    chat, classification = world.generations
    assert chat.intent.kind is Kind.CHAT
    engine = world.stand.engine_of("sorter")
    assert engine.record.entries[chat.id.hex].usage == engine.record.entries[classification.id.hex].usage


async def test_streamed_it_is_one_piece(app, world):
    answer = await ask(app, CHAT, BODY | {"stream": True, "stream_options": {"include_usage": True}})
    events = [event for _, event in answer.events() if event != "[DONE]"]
    pieces = [choice["delta"].get("content") for event in events for choice in event["choices"]]
    assert [piece for piece in pieces if piece] == ["blue"]
    assert events[-1]["usage"].items() >= USAGE.items()


async def test_other_apis_get_it_too(app, world):
    content = BODY["messages"][0]["content"]
    body = (await ask(app, RESPONSES, {"model": "sorter", "input": content})).json()
    assert body["output"][0]["content"][0]["text"] == "blue"
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (5, 0)
    body = (await ask(app, MESSAGES, {**BODY, "max_tokens": 1})).json()
    assert (body["content"][0]["text"], body["stop_reason"]) == ("blue", "end_turn")
    counted = await ask(app, "/v1/messages/count_tokens", BODY)
    assert counted.json() == {"input_tokens": 5}


@pytest.mark.parametrize(
    ("messages", "label"),
    [
        ([("system", "Labels: red, blue"), ("user", "Labels: good, bad\n\nblue")], "blue"),
        ([("system", "Labels: red, blue"), ("user", "red or what")], "red"),
        ([("system", "Be kind."), ("user", "Labels: red, blue\n\nblue good")], "blue"),
        ([("user", "Labels: red, blue\n\nred"), ("assistant", "red"), ("user", "a blue one")], "blue"),
        ([("user", "bad news, red and blue")], "bad"),  # the model's own labels: good, bad, other
        ([("user", "Labels: red, blue, Other\n\ngreen")], "Other"),
        ([("user", "Labels: red, blue\n\ngreen")], "red"),  # `other` wasn't named
    ],
    ids=str,
)
async def test_labels_are_those_that_the_instruction_names_or_the_models_own(app, world, messages, label):
    given = [{"role": role, "content": content} for role, content in messages]
    body = (await ask(app, CHAT, {"model": "sorter", "messages": given})).json()
    assert body["choices"][0]["message"]["content"] == label


@pytest.mark.parametrize(
    ("held_to", "answer"),
    [
        ({"structured_outputs": {"choice": ["my", "car trouble"]}}, "my"),
        (schema({"type": "string", "enum": ["cat", "car"]}), '"car"'),
        (schema(object_of({"enum": ["blue", "a “b”"]})), '{"topic":"blue"}'),
        (schema(object_of({"const": "ü"})), '{"topic":"ü"}'),
        (
            schema(object_of({"$ref": "#/$defs/T"}) | {"$defs": {"T": {"enum": ["car"], "title": "T"}}}),
            '{"topic":"car"}',
        ),
        ({"structured_outputs": {"json": {"enum": ["car"]}, "disable_any_whitespace": True}}, '"car"'),
    ],
    ids=str,
)
async def test_what_the_answer_is_held_to_comes_before_the_instruction(app, world, held_to, answer):
    body = (await ask(app, CHAT, BODY | held_to)).json()
    assert body["choices"][0]["message"]["content"] == answer


SURROGATE = r'{"type": "object", "properties": {"\ud800": {"enum": ["blue", "red"]}}}'
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tools": [TOOL]}, ("unsupported_parameter", "tools")),
        ({"n": 2}, ("unsupported_parameter", "n")),
        ({"logprobs": True}, ("unsupported_parameter", "logprobs")),
        ({"logit_bias": {"1": 5}}, ("unsupported_parameter", "logit_bias")),
        ({"min_tokens": 1}, ("unsupported_parameter", "min_tokens")),
        ({"response_format": {"type": "json_object"}}, ("unsupported_parameter", "response_format")),
        (schema({"type": "string"}), ("unsupported_parameter", "response_format")),
        (schema(object_of({"type": "string"})), ("unsupported_parameter", "response_format")),
        (schema({"enum": ["a", 1]}), ("unsupported_parameter", "response_format")),
        (schema({"$ref": "#/$defs/T", "enum": ["a"]}), ("unsupported_parameter", "response_format")),
        (schema({"$ref": "#/$defs/T"}), ("unsupported_parameter", "response_format")),
        ({"structured_outputs": {"regex": "a|b"}}, ("unsupported_parameter", "structured_outputs.regex")),
        ({"structured_outputs": {"json": "[" * 100_000}}, ("unsupported_parameter", "structured_outputs.json")),
        ({"structured_outputs": {"json": SURROGATE}}, ("unsupported_parameter", "structured_outputs.json")),
        ({"structured_outputs": {"choice": ["a", "b" * 201]}}, ("invalid_value", "structured_outputs.choice")),
        ({"structured_outputs": {"choice": ["a", " "]}}, ("invalid_value", "structured_outputs.choice")),
        ({"messages": [{"role": "user", "content": INSTRUCTION}]}, ("invalid_value", "messages")),
        ({"messages": [*BODY["messages"], {"role": "assistant", "content": "b"}]}, ("invalid_value", "messages")),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_what_it_cannot_honour_is_refused_by_field(app, world, change, fault):
    code, param = fault
    assert_error(await ask(app, CHAT, BODY | change), 400, code, param=param)
    assert world.generations == []


async def test_image_is_refused(app, world):
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    answer = await ask(app, CHAT, BODY | {"messages": [{"role": "user", "content": [part]}]})
    assert_error(answer, 400, "images_not_supported", param="messages[0].content[0]")


async def test_raw_prompt_is_refused(app, world):
    assert_error(
        await ask(app, "/v1/completions", {"model": "sorter", "prompt": "a"}),
        400,
        "unsupported_parameter",
        param="prompt",
    )


async def test_what_the_engine_refuses_is_a_fault_of_the_chats_fields(app, world):
    choice = {"structured_outputs": {"choice": ["a", "b"]}}
    for param, field in (("input", "messages"), ("labels", "structured_outputs.choice")):
        error = InvalidRequestError("it is too long", code="context_length_exceeded", param=param)
        world.stand.engine_of("sorter").prepare = AsyncMock(side_effect=error)
        assert_error(await ask(app, CHAT, BODY | choice), 400, "context_length_exceeded", param=field)


async def test_failed_one_costs_nothing(app, world):
    engine = world.stand.engine_of("sorter")
    engine.options = replace(engine.options, error_at=1)
    assert (await ask(app, CHAT, BODY)).status == 500
    assert await world.reason_of(world.generations[0]) is FinishReason.ERROR
