"""Responses over HTTP: whole and streamed."""

from __future__ import annotations

import pytest

from inference.messages import Message
from inference.types import FinishReason
from tests.gateway.apis.client import Exchange, ask, assert_error
from tests.gateway.apis.world import PROMPT_COST

PATH = "/v1/responses"
SAY = {"model": "small", "input": "Hi"}
COUNTED = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 7,
    "credits": "0.000016",
    "credits_micro": 16,
}
SEQUENCE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def test_answer_is_a_completed_response(app, world):
    answer = await ask(app, PATH, {**SAY, "instructions": "Be brief.", "metadata": {"a": "b"}, "max_output_tokens": 9})
    body = answer.json()
    assert body["id"] == f"resp_{world.generations[0].id.hex}"
    assert (body["status"], body["store"], body["error"]) == ("completed", False, None)
    message = body["output"][0]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [{"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}]
    counted = {"input_tokens": 12, "total_tokens": 14, "credits": "0.000023", "credits_micro": 23}
    assert body["usage"] == COUNTED | counted | {"input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0}}
    assert (body["metadata"], body["instructions"], body["max_output_tokens"]) == ({"a": "b"}, "Be brief.", 9)
    assert "sluice" not in body
    assert answer.headers["x-sluice-credits"] == "0.000023"
    assert world.intent.messages == (Message("system", ("Be brief.",)), Message("user", ("Hi",)))
    assert (world.intent.endpoint, world.intent.sampling.max_tokens) == ("responses", 9)


async def test_stream_tells_every_event_in_order(app):
    answer = await ask(app, PATH, {**SAY, "stream": True})
    events = answer.events()
    assert [name for name, _ in events] == SEQUENCE
    assert [data["type"] for _, data in events] == SEQUENCE
    assert [data["sequence_number"] for _, data in events] == list(range(len(SEQUENCE)))
    datas = [data for _, data in events]
    assert datas[0]["response"]["status"] == "in_progress"
    assert datas[0]["response"]["output"] == []
    assert [data["delta"] for data in datas[4:6]] == ["Hello", " there"]
    assert datas[6]["text"] == datas[7]["part"]["text"] == "Hello there"
    assert datas[8]["item"] == datas[9]["response"]["output"][0]
    assert {data["item_id"] for data in datas[3:8]} == {datas[2]["item"]["id"]}
    assert datas[9]["response"]["usage"] == COUNTED


async def test_stream_of_exhausted_credit_is_incomplete(app, world):
    world.set_credit(PROMPT_COST + 3)  # one token of output costs two
    name, data = (await ask(app, PATH, {**SAY, "stream": True})).events()[-1]
    assert name == "response.incomplete"
    assert data["response"]["status"] == "incomplete"
    assert data["response"]["output"][0]["status"] == "incomplete"
    details = {"reason": "max_output_tokens", "sluice_reason": "credit_exhausted"}
    assert data["response"]["incomplete_details"] == details


async def test_stream_of_a_lost_engine_fails_with_its_charge(app, world):
    world.set_options(lose_at=2)
    name, data = (await ask(app, PATH, {**SAY, "stream": True})).events()[-1]
    assert name == "response.failed"
    assert data["response"]["error"] == {"code": "worker_lost", "message": "the worker was lost"}
    assert data["response"]["usage"]["credits_micro"] == PROMPT_COST + 2
    assert data["response"]["output"][0]["content"][0]["text"] == "Hello"


async def test_failure_without_streaming_is_an_error(app, world):
    world.set_options(lose_at=1)
    assert_error(await ask(app, PATH, SAY), 503, "worker_lost")


async def test_input_items_of_each_form_are_taken(app, world):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "c"},
            ],
        },
        {"role": "assistant", "content": "d"},
    ]
    assert (await ask(app, PATH, {"model": "small", "input": items})).status == 200
    assert world.intent.messages == (
        Message("system", ("Be brief.",)),
        Message("user", ("Hi",)),
        Message("user", ("a",)),
        Message("assistant", ("b\nc",)),
        Message("assistant", ("d",)),
    )


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": 3}, "invalid_type", "input"),
        ({"input": [3]}, "invalid_type", "input[0]"),
        ({"input": [{"content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"role": "user", "content": 7}]}, "invalid_type", "input[0].content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user", "content": "x", "a": 1}]}, "unknown_parameter", "input[0].a"),
        ({"input": [{"type": "function_call_output"}]}, "missing_required_parameter", "input[0].call_id"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "unsupported_parameter", "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "invalid_value",
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "invalid_value", "input[0].content[0].type"),
        ({"store": "yes"}, "invalid_type", "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
        ({"background": True}, "invalid_value", "background"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"text": {"format": {"type": "json_object"}}}, "guidance_unavailable", "text.format"),
        ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include[0]"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"text": {"verbosity": "long"}}, "invalid_value", "text.verbosity"),
        ({"client_metadata": "x"}, "invalid_type", "client_metadata"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "x"}}, "unsupported_parameter", "prompt"),
        ({"stream_options": {}}, "unsupported_parameter", "stream_options"),
        ({"stream_id": "a"}, "unknown_parameter", "stream_id"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    ],
)
async def test_wrong_field_is_named(app, world, change, code, param):
    assert_error(await ask(app, PATH, {**SAY, **change}), 400, code, param=param)
    assert world.generations == []


async def test_neutral_fields_of_sdks_are_taken(app):
    neutral = {
        "store": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "background": False,
        "text": {"format": {"type": "text"}}, "include": ["reasoning.encrypted_content"], "truncation": "disabled",
        "reasoning": {"effort": None}, "service_tier": "default", "previous_response_id": None, "user": "u",
        "stream": False, "prompt_cache_key": "k", "top_k": 5, "repetition_penalty": 1.0, "presence_penalty": 0,
    }  # fmt: skip
    assert (await ask(app, PATH, {**SAY, **neutral})).status == 200


@pytest.mark.parametrize(
    "hint",
    [
        {"client_metadata": {"x-codex-installation-id": "1b9d6bcd", "turn": {"n": 1}}},
        {"text": {"verbosity": "low"}},
        {"text": {"verbosity": "high", "format": {"type": "text"}}},
        {"prompt_cache_retention": "24h"},
        {"safety_identifier": "s"},
        {"include": ["reasoning.encrypted_content"], "parallel_tool_calls": True},
    ],
)
async def test_hints_of_popular_clients_change_nothing(app, hint):
    plain = (await ask(app, PATH, SAY)).json()
    hinted = await ask(app, PATH, {**SAY, **hint})
    assert hinted.status == 200, hinted.body
    assert hinted.json()["usage"] == plain["usage"]
    assert hinted.json()["output"][0]["content"] == plain["output"][0]["content"]
    assert "client_metadata" not in hinted.json()


async def test_only_our_own_name_in_the_metadata_is_the_task(app, world):
    metadata = {"task": "x" * 512}
    body = (await ask(app, PATH, {**SAY, "metadata": metadata})).json()
    assert (world.intent.task, body["metadata"]) == (None, metadata)
    await ask(app, PATH, {**SAY, "metadata": {"sluice_task": "classify"}})
    assert world.intent.task == "classify"


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_stops_the_generation(app, world, stream):
    world.set_options(hang_at=2)
    exchange = Exchange(app, "POST", PATH, body={**SAY, "stream": stream})
    await world.engine.hanging()
    exchange.leave()
    await exchange.finished()
    assert await world.reason_of(world.generations[0]) is FinishReason.CANCELLED
