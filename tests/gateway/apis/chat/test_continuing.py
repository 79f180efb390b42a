"""Answers that go on with a message that the client has begun for the model, in all APIs."""

from __future__ import annotations

import pytest

from inference.messages import Message, Reasoning, ToolCall
from inference.types import Asked
from tests.gateway.apis.client import ask, assert_error

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HI = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "Ho "}
CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": "find"}}]


def chat(*messages, **more):
    return CHAT, {"messages": [HI, *messages], "continue_final_message": True, **more}


def response(status="incomplete", **more):
    return RESPONSES, {"input": [HI, {"type": "message", **BEGUN, "status": status}], **more}


def message(content="Ho ", **more):
    return MESSAGES, {"messages": [HI, {"role": "assistant", "content": content}], "max_tokens": 2000, **more}


def error_of(answer, status, code, param):
    """Check an error in either shape."""
    error = answer.json()["error"]
    told, name = (error["details"], "error_code") if "details" in error else (error, "code")
    assert (answer.status, told[name], told["param"]) == (status, code, param), error


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        (*chat(BEGUN), "continue_final_message"),
        (*chat(BEGUN, add_generation_prompt=False), "continue_final_message"),
        (*response(), "input[1].status"),
        (*response("in_progress"), "input[1].status"),
        (*message(), "messages[1]"),
        (*message([{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Ho "}]), "messages[1]"),
    ],
)
async def test_the_last_message_is_gone_on_with(app, world, path, body, at):
    answer = await ask(app, path, {"model": "small", **body})
    assert answer.status == 200, answer.body
    assert world.intent.continues == at
    assert world.intent.messages[-1].role == "assistant"
    assert world.intent.messages[-1].parts[-1] == "Ho "
    assert "x-sluice-not-enforced" not in answer.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [HI, BEGUN]}),
        (CHAT, {"messages": [HI, BEGUN], "add_generation_prompt": True, "continue_final_message": False}),
        response("completed"),
        (RESPONSES, {"input": [{**BEGUN, "status": "incomplete"}, HI]}),
    ],
)
async def test_a_message_that_is_ended_has_another_one_behind_it(app, world, path, body):
    assert (await ask(app, path, {"model": "small", **body})).status == 200
    assert not world.intent.continues


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (*chat(), "continue_final_message"),
        (*chat({**BEGUN, "tool_calls": [CALL]}), "continue_final_message"),
        (*chat(BEGUN, add_generation_prompt=True), "add_generation_prompt"),
        (*chat(BEGUN, response_format=SCHEMA), "response_format"),
        (*chat(BEGUN, tools=TOOLS, tool_choice="required"), "tool_choice"),
        (*chat(BEGUN, thinking_token_budget=9), "thinking_token_budget"),
        (*message([{"type": "tool_use", "id": "c", "name": "find", "input": {}}]), "messages[1]"),
        (*message(output_format={"type": "json_schema", "schema": {"type": "object"}}), "output_format"),
    ],
)
async def test_what_only_a_whole_answer_has_is_refused(app, path, body, param):
    error_of(await ask(app, path, {"model": "small", **body}), 400, "invalid_value", param)


@pytest.mark.parametrize(
    ("path", "body", "wish"),
    [
        (*chat(BEGUN, reasoning_effort="low"), "reasoning_effort"),
        (*chat(BEGUN, reasoning_effort="none"), None),
        (*response(reasoning={"effort": "high"}), "reasoning.effort"),
        (*message(thinking={"type": "enabled", "budget_tokens": 1024}), "thinking"),
        (*message(thinking={"type": "disabled"}), None),
    ],
)
async def test_nothing_is_thought_behind_its_beginning(app, world, path, body, wish):
    answer = await ask(app, path, {"model": "small", **body})
    assert (answer.status, answer.headers.get("x-sluice-not-enforced")) == (200, wish)
    sampling = world.intent.sampling
    assert (sampling.thinking_tokens, sampling.thinking_asked, sampling.effort) == (0, Asked.NOT, "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": [HI, BEGUN]}),
        ("/v1/responses/input_tokens", response()[1]),
        ("/v1/tokenize", chat(BEGUN)[1]),
    ],
)
async def test_what_is_begun_is_counted_as_it_would_run(app, world, monkeypatch, path, body):
    seen = []
    method = "tokenize" if path.endswith("tokenize") else "prepare"
    asked = getattr(world.engine, method)

    async def noted(request, **more):
        seen.append(request)
        return await asked(request, **more)

    monkeypatch.setattr(world.engine, method, noted)
    assert (await ask(app, path, {"model": "small", **body})).status == 200
    assert seen[0].continues
    assert seen[0].messages[-1] == Message("assistant", ("Ho ",))


async def test_a_message_and_what_went_on_with_it_are_one(app, world):
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    call = {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"}
    begun, rest = {**BEGUN, "status": "incomplete"}, {"role": "assistant", "content": "ho"}
    for items, expected in {
        (0, 1): [("Ho ho",)],
        (2, 0, 1): [(Reasoning("Hm"), "Ho ho")],
        (0, 1, 3): [("Ho ho", ToolCall("c", "find", "{}"))],
        (1, 0): [("ho",), ("Ho ",)],
        (0, 4, 1): [("Ho ",), ("Hi",), ("ho",)],
    }.items():
        given = [[begun, rest, thought, call, HI][item] for item in items]
        assert (await ask(app, RESPONSES, {"model": "small", "input": [HI, *given, HI]})).status == 200
        assert [message.parts for message in world.intent.messages[1:-1]] == expected


@pytest.mark.parametrize(
    "demand",
    [
        {"text": {"format": {"type": "json_object"}}},
        {"tools": [TOOLS[0]["function"] | {"type": "function"}], "tool_choice": "required"},
        {"thinking_token_budget": 9},
    ],
    ids=["format", "tool", "thought"],
)
async def test_an_answer_that_was_cut_off_is_given_back_with_a_demand_for_a_whole_one(app, world, demand):
    world.set_options(guides=True, thinks=True)
    path, body = response(**demand)
    answer = await ask(app, path, {"model": "small", **body})
    assert (answer.status, answer.json().get("sluice_not_enforced")) == (200, ["input[1].status"]), answer.json()
    assert not world.intent.continues
    assert world.intent.messages[-1] == Message("assistant", ("Ho ",))


async def test_a_classifier_goes_on_with_nothing(app):
    answer = await ask(app, CHAT, {"model": "sorter", **chat(BEGUN)[1]})
    assert_error(answer, 400, "unsupported_parameter", param="continue_final_message")
