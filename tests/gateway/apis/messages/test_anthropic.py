"""Anthropic's Messages API: the unmodified SDK in process, and what agents send besides."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager

import anthropic
import httpx2
import pydantic
import pytest

from billing.writer.operations import Settle
from gateway.apis.messages.endpoint import NO_OBJECT, SIGNATURE
from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult
from inference.tools import ToolMode
from inference.types import Asked, GuidanceKind
from tests.gateway.apis.client import ask
from tests.gateway.apis.world import COST, KEY, PROMPT_COST
from tests.gateway.wire.test_images import png

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "Hi"}]
SAY = {"model": "small", "max_tokens": 50, "messages": HI}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather in a city.", "input_schema": CITY}
LOOK = '<tool_call> {"name": "weather", "arguments": {"city": "Oslo"}} </tool_call>'


@asynccontextmanager
async def client_of(app, **options):
    transport = httpx2.ASGITransport(app=app)
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        anthropic.AsyncAnthropic(
            **({"api_key": KEY} | options), base_url="http://gateway", http_client=http, max_retries=0
        ) as client,
    ):
        yield client


@pytest.fixture
async def client(app):
    async with client_of(app) as client:
        yield client


def refused(answer, status, kind, code, param=None):
    """The answer is Anthropic's error; return its message."""
    assert answer.status == status, answer.body
    body = answer.json()
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert body["error"]["type"] == kind
    assert body["error"]["details"] == {"error_code": code, "param": param}
    return body["error"]["message"]


async def test_a_message_whole_and_streamed(world, client):
    more = {"system": "Be", "metadata": {"user_id": "u"}, "extra_body": {"top_k": 3}}
    whole = await client.messages.create(**SAY, **more)
    assert (whole.type, whole.role, whole.model, whole.stop_reason) == ("message", "assistant", "small", "end_turn")
    assert [block.text for block in whole.content] == ["Hello there"]
    assert whole.id == f"msg_{whole._request_id.replace('-', '')}"
    assert world.intent.messages == (Message("system", ("Be",)), Message("user", ("Hi",)))
    assert (world.intent.sampling.max_tokens, world.intent.sampling.top_k, world.intent.end_user) == (50, 3, "u")
    async with client.messages.stream(**SAY) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta", "text"] * 2,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert final.content[0].text == "Hello there"
    assert final.stop_reason == "end_turn"


async def test_usage_says_what_was_computed_cached_and_charged(world, client):
    whole = await client.messages.create(**SAY)
    async with client.messages.stream(**SAY) as stream:
        streamed = await stream.get_final_message()
    for usage in (whole.usage, streamed.usage):
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 2, 2)
        assert usage.cache_creation_input_tokens == 0  # automatic, and not priced apart
        assert usage.service_tier == "standard"
    assert whole.usage.credits_micro == COST
    assert [operation.charge for operation in world.stand.writer.of(Settle)] == [COST, COST]


async def test_a_stream_begins_with_the_prompt_that_is_known(app):
    events = (await ask(app, MESSAGES, {**SAY, "stream": True})).events()
    assert [name for name, _ in events][:2] == ["message_start", "ping"]
    usage = events[0][1]["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 2, 0)
    assert all(name == data["type"] for name, data in events)


async def test_both_ways_to_send_a_key(world, app):
    async with client_of(app, api_key=None, auth_token=KEY) as client:
        assert (await client.messages.create(**SAY)).content
    for key in ("sk-sluice-bad", ""):
        async with client_of(app, api_key=key) as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await client.messages.create(**SAY)
            assert caught.value.type == "authentication_error"
            assert caught.value.request_id


async def test_why_a_message_ended(world, client, app):
    world.set_options(text="one two three four")
    cut = await client.messages.create(**{**SAY, "max_tokens": 2})
    assert (cut.stop_reason, cut.stop_sequence, cut.content[0].text) == ("max_tokens", None, "one two")
    for stream in (False, True):
        answer = await ask(app, MESSAGES, {**SAY, "stop_sequences": ["x", " three"], "stream": stream})
        told = answer.events()[-2][1]["delta"] if stream else answer.json()
        assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", " three")
    world.set_options(text="", tokens=100, max_context=20)
    full = await client.messages.create(**SAY)
    assert full.stop_reason == "model_context_window_exceeded"
    world.set_options(max_context=8192)
    world.set_credit(PROMPT_COST + 12)
    out = await client.messages.create(**SAY)
    assert (out.stop_reason, out.sluice_reason) == ("max_tokens", "credit_exhausted")


async def test_blocks_become_parts(world, app):
    image = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(30, 20)).decode()}
    kept = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    world.let_see("small", "data")
    body = {
        **SAY,
        "system": [{"type": "text", "text": "Be", **kept}, {"type": "text", "text": "brief"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look", **kept}, {"type": "image", "source": image}]},
            {"role": "user", "content": "please"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "theirs"},
                    {"type": "thinking", "thinking": "", "signature": SIGNATURE},
                    {"type": "text", "text": "I look", "citations": None},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}, "caller": None},
                    {"type": "tool_use", "id": "t2", "name": "weather", "input": {}, **kept},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and?"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}], **kept},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": "no city"},
                ],
            },
            {"role": "system", "content": "Hurry"},
        ],
    }
    assert (await ask(app, MESSAGES, body)).status == 200
    data = f"data:image/png;base64,{image['data']}"
    assert world.intent.messages == (
        Message("system", ("Be\nbrief",)),
        Message("user", ("Look", Image(data, 30, 20), "please")),
        Message(
            "assistant",
            (Reasoning("Hm"), "I look", ToolCall("t1", "weather", '{"city":"Oslo"}'), ToolCall("t2", "weather", "{}")),
        ),
        Message("tool", (ToolResult("t1", ("rain",)), ToolResult("t2", ("Error: no city",)))),
        Message("user", ("and?",)),
        Message("system", ("Hurry",)),
    )
    assert (world.intent.images, world.intent.image_at) == ("data", "messages[0].content[1]")


@pytest.mark.parametrize(
    ("block", "at"),
    [
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}, "source.type"),
        ({"type": "document", "source": {"type": "url", "url": "https://example.com"}}, "source.type"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "source.type"),
        ({"type": "text", "text": "x", "citations": [{}]}, "citations"),
    ],
)
async def test_what_a_user_can_not_send_is_refused_by_name(app, block, at):
    answer = await ask(app, MESSAGES, {**SAY, "messages": [{"role": "user", "content": [block]}]})
    refused(answer, 400, "invalid_request_error", "unsupported_parameter", f"messages[0].content[0].{at}")


@pytest.mark.parametrize("kind", ["redacted_thinking", "server_tool_use"])
async def test_what_other_models_hid_is_refused_by_name(app, kind):
    turns = [*HI, {"role": "assistant", "content": [{"type": kind, "data": "x"}]}, *HI]
    answer = await ask(app, MESSAGES, {**SAY, "messages": turns})
    refused(answer, 400, "invalid_request_error", "unsupported_parameter", "messages[1].content[0].type")


@pytest.mark.parametrize(
    ("field", "value", "code", "param"),
    [
        ("tools", [{"type": "web_search_20260209", "name": "web_search"}], "unsupported_parameter", "tools[0].type"),
        ("tools", [{"type": "bash_20250124", "name": "bash"}], "unsupported_parameter", "tools[0].type"),
        ("tools", [{"name": "x", "input_schema": {"type": "array"}}], "invalid_value", "tools[0].input_schema"),
        ("tools", [{"name": "x", "input_schema": {"title": "x" * 262_144}}], "invalid_value", "tools[0].input_schema"),
        ("tools", [WEATHER, WEATHER], "invalid_value", "tools[1]"),
        ("tool_choice", {"type": "any"}, "invalid_value", "tool_choice"),
        ("temperature", 1.5, "invalid_value", "temperature"),
        ("max_tokens", 0, "invalid_value", "max_tokens"),
        ("container", {"id": "c"}, "unsupported_parameter", "container"),
        ("mcp_servers", [{"url": "https://example.com"}], "unsupported_parameter", "mcp_servers"),
        ("thread", {"type": "create"}, "thread_unsupported_request", "thread"),
        ("colour", "red", "unknown_parameter", "colour"),
    ],
)
async def test_fields_that_are_refused(app, field, value, code, param):
    answer = await ask(app, MESSAGES, {**SAY, field: value})
    refused(answer, 400, "invalid_request_error", code, param)


async def test_what_an_agent_sends_is_taken(world, app):
    body = {
        **SAY,
        "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}, "defer_loading": True, "strict": False}],
        "thinking": {"type": "enabled", "budget_tokens": 4096},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": None},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "diagnostics": {"previous_message_id": None},
        "temperature": 1,
    }
    betas = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,a-new-one-2099-01-01"}
    answer = await ask(app, f"{MESSAGES}?beta=true", body, headers=betas)
    assert answer.status == 200, answer.body
    assert answer.json()["context_management"] == {"applied_edits": []}
    assert (world.intent.sampling.thinking_tokens, world.intent.sampling.thinking_asked) == (4096, Asked.WISH)


async def test_tools_are_called_in_a_loop_by_the_sdk(world, client):
    world.set_options(text="", script=[LOOK, "It rains."])
    asked = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Say the weather in a city."""
        asked.append(city)
        return "rain"

    runner = client.beta.messages.tool_runner(**SAY, tools=[weather])
    last = await runner.until_done()
    assert asked == ["Oslo"]
    assert last.content[0].text == "It rains."
    assert last.stop_reason == "end_turn"
    [call] = world.intent.messages[1].parts
    assert world.intent.messages[2] == Message("tool", (ToolResult(call.id, ("rain",)),))
    assert world.intent.tools.functions[0].parameters


async def test_calls_are_streamed_as_they_are_written(world, client):
    world.set_options(text="", script=[f"I look. {LOOK} {LOOK}"])
    async with client.messages.stream(**SAY, tools=[WEATHER]) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_message()
    assert "input_json" in kinds
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert final.content[1].input == {"city": "Oslo"}
    assert final.content[1].id != final.content[2].id
    assert final.stop_reason == "tool_use"
    one = await client.messages.create(
        **SAY, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    )
    assert [block.type for block in one.content] == ["text", "tool_use"]
    none = await client.messages.create(**SAY, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"]


async def test_a_call_that_is_no_object_is_told_as_it_was_written(world, client):
    world.set_options(text="", script=[LOOK])
    cut = await client.messages.create(**{**SAY, "max_tokens": 5}, tools=[WEATHER])
    [call] = cut.content
    assert call.input[NO_OBJECT].startswith('{"city":')
    assert cut.stop_reason == "max_tokens"


async def test_a_tool_that_has_to_be_called(world, client):
    world.set_options(text="", script=[LOOK], guides=True)
    other = {**WEATHER, "name": "time", "input_examples": [{"city": "Rome"}]}
    await client.messages.create(**SAY, tools=[WEATHER, other], tool_choice={"type": "tool", "name": "weather"})
    assert (world.intent.tools.mode, world.intent.tools.allowed) == (ToolMode.REQUIRED, ("weather",))
    assert '{"city":"Rome"}' in world.intent.tools.functions[1].description
    await client.messages.create(**SAY, tools=[WEATHER], tool_choice={"type": "any"})
    assert (world.intent.tools.mode, world.intent.tools.allowed) == (ToolMode.REQUIRED, ())


async def test_thought_is_a_block_and_only_when_it_is_asked_for(world, client, app):
    world.set_options(text="<think> Where? </think> In Oslo.", thinks=True)
    enabled = {"type": "enabled", "budget_tokens": 1024}
    async with client.messages.stream(**SAY, thinking=enabled) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert "thinking" in kinds
    assert "signature" in kinds
    whole = await client.messages.create(**SAY, thinking=enabled)
    for message in (final, whole):
        thought, text = message.content
        assert (thought.thinking, thought.signature, text.text) == ("Where?", SIGNATURE, "In Oslo.")
    assert whole.usage.output_tokens_details.thinking_tokens == 3
    hidden = await client.messages.create(**SAY, thinking={"type": "adaptive", "display": "omitted"})
    assert (hidden.content[0].thinking, hidden.content[0].signature) == ("", SIGNATURE)
    assert world.intent.sampling.thinking_tokens is None
    events = (
        await ask(app, MESSAGES, {**SAY, "stream": True, "thinking": {"type": "adaptive", "display": "omitted"}})
    ).events()
    deltas = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert set(deltas) == {"signature_delta", "text_delta"}
    for said in ({}, {"thinking": {"type": "disabled"}}):
        await client.messages.create(**SAY, **said)
        assert world.intent.sampling.thinking_tokens == 0


async def test_an_answer_by_a_schema(world, client):
    class City(pydantic.BaseModel):
        name: str

    world.set_options(text='{"name": "Oslo"}', guides=True)
    parsed = await client.messages.parse(**SAY, output_format=City)
    assert parsed.parsed_output == City(name="Oslo")
    guidance = world.intent.sampling.guidance
    assert (guidance.kind, guidance.param) == (GuidanceKind.JSON_SCHEMA, "output_config.format")
    assert json.loads(guidance.source)["required"] == ["name"]


async def test_counted_tokens_are_those_of_the_prompt_and_cost_nothing(world, client):
    say = {"model": "small", "messages": HI, "system": "Be", "tools": [WEATHER]}
    counted = await client.messages.count_tokens(**say)
    assert world.stand.writer.operations == []
    ran = await client.messages.create(**say, max_tokens=5)
    assert counted.input_tokens == ran.usage.input_tokens + ran.usage.cache_read_input_tokens
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(**{**say, "model": "none"})


async def test_errors_before_and_in_a_stream(world, client, app):
    world.set_options(max_context=4)
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(**SAY)
    assert caught.value.api_message.startswith("prompt is too long: ")
    assert caught.value.error_code == "context_length_exceeded"
    world.set_options(max_context=8192, error_at=2)
    events = (await ask(app, MESSAGES, {**SAY, "stream": True})).events()
    name, data = events[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")
    assert data["request_id"]
    with pytest.raises(anthropic.APIStatusError):
        async with client.messages.stream(**SAY) as stream:
            await stream.get_final_message()
    world.set_options(error_at=0)
    world.set_credit(1)
    with pytest.raises(anthropic.PaymentRequiredError) as caught:
        await client.messages.create(**SAY)
    assert caught.value.type == "billing_error"


async def test_models_as_the_sdk_lists_them(world, client, app):
    world.set_options(thinks=True)
    found = [info async for info in client.models.list(limit=2)]  # two pages
    assert [info.id for info in found] == ["auto", "org/big", "small"]  # an embedder answers no messages
    small = found[-1]
    assert (small.max_input_tokens, small.max_tokens, small.lifecycle) == (2048, 2047, "active")
    assert small.created_at.timestamp() == 1_700_000_000
    assert small.capabilities.thinking.types.enabled.supported
    assert not small.capabilities.image_input.supported
    assert (await client.models.retrieve("org/big")).id == "org/big"
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("none")
    last = await client.models.list(limit=1, before_id="small")
    assert [info.id for info in last.data] == ["org/big"]
    assert last.has_more
    headers = {"anthropic-version": "2023-06-01"}
    answer = await ask(app, "/v1/models?limit=0", headers=headers)
    refused(answer, 400, "invalid_request_error", "invalid_value", "limit")


async def test_every_refusal_has_the_shape_of_its_api(app, settings):
    settings.SLUICE_MAX_BODY_BYTES = 100
    answer = await ask(app, MESSAGES, {**SAY, "system": "x" * 100})
    refused(answer, 413, "request_too_large", "request_too_large")
    refused(await ask(app, MESSAGES), 405, "invalid_request_error", "method_not_allowed")
    refused(await ask(app, MESSAGES, b"{"), 400, "invalid_request_error", "invalid_json")
    refused(await ask(app, COUNT, {}, key=None), 401, "authentication_error", "missing_api_key")
    version = {"anthropic-version": "2023-06-01"}
    answer = await ask(app, "/v1/messages/batches", {}, headers=version)
    assert "/v1/messages" in refused(answer, 404, "not_found_error", "unknown_endpoint")
    answer = await ask(app, "/v1/messages/batches", {})
    assert answer.json()["error"]["code"] == "unknown_endpoint"
