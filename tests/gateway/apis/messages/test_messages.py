"""Messages in parts, from both APIs of text to the engine: images, tool calls and their results, reasoning."""

from __future__ import annotations

import pytest

from gateway.wire import parts
from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult
from tests.gateway.apis.client import ask, assert_error
from tests.gateway.wire.test_images import data_url, png

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PNG = data_url(png(30, 20))
URL = "https://example.com/cat.png"


def chat(*messages, model="org/big"):
    return {"model": model, "messages": list(messages)}


def responses(*items, model="org/big"):
    return {"model": model, "input": list(items)}


def seen(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def call(number, arguments='{"city": "Oslo"}'):
    return {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}


TEXT = {"type": "text", "text": "Look:"}
LOOK = {"role": "user", "content": [TEXT, TEXT, seen(PNG, detail="low"), TEXT]}
LOOK_RESPONSES = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_text", "text": "Look:"},
    ],
}
AT_IMAGE = {CHAT: "messages[1].content[2]", RESPONSES: "input[1].content[2]"}
HI = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat(LOOK)), (RESPONSES, responses(LOOK_RESPONSES))])
async def test_images_reach_a_model_that_sees(app, world, path, body):
    world.let_see("org/big", "data")
    assert (await ask(app, path, body)).status == 200
    image = Image(PNG, 30, 20, "low")
    assert world.intent.messages == (Message("user", ("Look:\nLook:", image, "Look:")),)
    assert world.intent.size == len("Look:\nLook:") + len("Look:") + len(PNG)


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat(HI, LOOK)), (RESPONSES, responses(HI, LOOK_RESPONSES))])
async def test_a_model_that_sees_nothing_is_named_with_the_field(app, world, path, body):
    error = assert_error(await ask(app, path, body), 400, "images_not_supported", param=AT_IMAGE[path])
    assert "'org/big' takes no images" in error["message"]
    assert world.generations == []


async def test_addresses_go_only_where_a_server_may_fetch_them(app, world):
    world.let_see("org/big", "data")
    body = chat({"role": "user", "content": [seen(PNG), seen(URL)]})
    error = assert_error(await ask(app, CHAT, body), 400, "images_not_supported", param="messages[0].content[0]")
    assert "data: URLs only" in error["message"]
    world.let_see("org/big", "urls")
    assert (await ask(app, CHAT, body)).status == 200
    assert world.intent.messages[0].images == (Image(PNG, 30, 20), Image(URL))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat({"role": "system", "content": [seen(PNG)]}), "messages[0].content[0].type"),
        (CHAT, chat({"role": "assistant", "content": [seen(PNG)]}), "messages[0].content[0].type"),
        (CHAT, chat({"role": "user", "content": [{"type": "input_audio"}]}), "messages[0].content[0].type"),
        (CHAT, chat({"role": "user", "content": [{"type": "file"}]}), "messages[0].content[0].type"),
        (
            RESPONSES,
            responses({"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}),
            "input[0].content[0].file_id",
        ),
        (RESPONSES, responses({"role": "user", "content": [{"type": "input_file"}]}), "input[0].content[0].type"),
        (RESPONSES, responses({"type": "reasoning", "encrypted_content": "x"}), "input[0].encrypted_content"),
        (CHAT, chat({"role": "function", "name": "f", "content": "x"}), "messages[0].role"),
        (
            CHAT,
            chat({"role": "assistant", "tool_calls": [{"type": "custom", "id": "x"}]}),
            "messages[0].tool_calls[0].type",
        ),
    ],
)
async def test_parts_that_are_not_taken_are_named(app, world, path, body, param):
    assert_error(await ask(app, path, body), 400, "unsupported_parameter", param=param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat({"role": "tool", "content": "x"}), "messages[0].tool_call_id"),
        (CHAT, chat({"role": "tool", "tool_call_id": "c"}), "messages[0].content"),
        (CHAT, chat({"role": "assistant", "tool_calls": []}), "messages[0].content"),
        (CHAT, chat({"role": "assistant", "tool_calls": [{"type": "function"}]}), "messages[0].tool_calls[0].id"),
        (RESPONSES, responses({"type": "function_call_output", "call_id": "c"}), "input[0].output"),
        (RESPONSES, responses({"type": "function_call", "call_id": "c", "name": "f"}), "input[0].arguments"),
    ],
)
async def test_what_is_missing_is_named(app, world, path, body, param):
    assert_error(await ask(app, path, body), 400, "missing_required_parameter", param=param)


async def test_images_of_a_request_are_bounded(app, world, monkeypatch):
    monkeypatch.setattr(parts, "MAX_IMAGES", 2)
    world.let_see("org/big", "data")
    assert (await ask(app, CHAT, chat({"role": "user", "content": [seen(PNG)] * 2}))).status == 200
    answer = await ask(app, CHAT, chat({"role": "user", "content": [seen(PNG)] * 3}))
    assert_error(answer, 400, "invalid_value", param="messages[0].content[2]")


@pytest.mark.parametrize(
    ("path", "of", "param"),
    [
        (CHAT, lambda urls: chat({"role": "user", "content": [seen(url) for url in urls]}), "messages[0].content[2]"),
        (
            RESPONSES,
            lambda urls: responses(
                *({"role": "user", "content": [{"type": "input_image", "image_url": url}]} for url in urls)
            ),
            "input[2].content[0]",
        ),
    ],
)
async def test_pixels_of_a_request_are_bounded_together(app, world, path, of, param):
    """A few kilobytes of such images are gigabytes where a server unpacks them."""
    world.let_see("org/big", "data")
    large, small = data_url(png(8192, 8192)), data_url(png(4096, 4096))
    assert (await ask(app, path, of([large, small]))).status == 200
    assert_error(await ask(app, path, of([large, small, large])), 400, "invalid_value", param=param)


async def test_a_tool_loop_in_history_reaches_the_engine_from_chat(app, world):
    body = chat(
        HI,
        {"role": "assistant", "content": None, "reasoning_content": "Ask.", "tool_calls": [call(1), call(2, "broken")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain", "name": "weather"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "no such city"}]},
        {"role": "assistant", "content": "It rains.", "reasoning": "Tell."},
    )
    assert (await ask(app, CHAT, body)).status == 200
    assert world.intent.messages[1:] == (
        Message(
            "assistant",
            (
                Reasoning("Ask."),
                ToolCall("call_1", "weather", '{"city": "Oslo"}'),
                ToolCall("call_2", "weather", "broken"),
            ),
        ),
        Message("tool", (ToolResult("call_1", ("rain",)),)),
        Message("tool", (ToolResult("call_2", ("no such city",)),)),
        Message("assistant", (Reasoning("Tell."), "It rains.")),
    )


async def test_an_answer_given_back_inside_its_own_text_is_its_text(app, world):
    """As OpenAI's Agents SDK for Node.js does: what the message had beside the text stands in the text's part."""
    kept = {
        "role": "assistant",
        "refusal": None,
        "annotations": [],
        "reasoning_content": "Ask.",
        "tool_calls": [call(1)],
    }
    said = {"role": "assistant", "content": [{"type": "text", "text": "Let me look.", **kept}], "tool_calls": [call(1)]}
    body = chat(HI, said, {"role": "tool", "tool_call_id": "call_1", "content": "rain"})
    assert (await ask(app, CHAT, body)).status == 200
    assert world.intent.messages[1] == Message(
        "assistant", ("Let me look.", ToolCall("call_1", "weather", '{"city": "Oslo"}'))
    )
    refused = await ask(app, CHAT, chat({"role": "user", "content": said["content"]}))
    assert_error(refused, 400, "unknown_parameter", param="messages[0].content[0].role")


async def test_items_of_one_turn_are_one_message(app, world):
    def called(number):
        return {
            "type": "function_call",
            "id": "fc_1",
            "call_id": f"call_{number}",
            "name": "weather",
            "arguments": "{}",
        }

    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    body = responses(
        HI,
        thought,
        {"role": "assistant", "content": "Let me look."},
        called(1),
        called(2),
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        called(3),
        thought,
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": "Two."},
        thought,
    )
    assert (await ask(app, RESPONSES, body)).status == 200
    assert world.intent.messages[1:] == (
        Message(
            "assistant",
            (
                Reasoning("Hm"),
                "Let me look.",
                ToolCall("call_1", "weather", "{}"),
                ToolCall("call_2", "weather", "{}"),
            ),
        ),
        Message("tool", (ToolResult("call_1", ("rain",)),)),
        Message("assistant", (ToolCall("call_3", "weather", "{}"), Reasoning("Hm"), "One.")),
        Message("assistant", ("Two.",)),
        Message("assistant", (Reasoning("Hm"),)),
    )
