"""Reasoning and function calls of an answer, as Chat Completions and Responses render them."""

from __future__ import annotations

import asyncio

import pytest

from inference.types import CallPiece, Delta, Finished, FinishReason, Started, Usage
from tests.gateway.apis.client import ask

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SAY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
SAY_RESPONSES = {"model": "small", "input": "Hi"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.fixture
def thinking(world, monkeypatch):
    """The engine thinks, speaks and calls a function."""
    pieces = [
        {"reasoning": "Rain"},
        {"reasoning": "?"},
        {"text": "Let me look."},
        {"calls": (CallPiece("c1", "weather"), CallPiece(arguments='{"city": '))},
        {"calls": (CallPiece(arguments='"Oslo"}'),)},
    ]

    async def generate(*_):
        yield Started(2, 0)
        for number, piece in enumerate(pieces, 1):
            await asyncio.sleep(0)  # else those that wait are joined
            yield Delta(usage=Usage(3, 2, 0, number), **{"text": "", **piece})
        yield Finished(FinishReason.STOP, Usage(3, 2, 0, len(pieces)))

    monkeypatch.setattr(world.engine, "generate", generate)


async def test_chat_completion_has_thought_text_and_calls(app, thinking):
    [choice] = (await ask(app, CHAT, SAY)).json()["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me look.", "Rain?")
    assert message["tool_calls"] == [CALLED]
    assert choice["finish_reason"] == "tool_calls"


async def test_chat_chunks_have_thought_text_and_calls(app, thinking):
    events = (await ask(app, CHAT, {**SAY, "stream": True})).events()
    choices = [data["choices"][0] for _, data in events[:-1]]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant"},
        {"reasoning_content": "Rain"},
        {"reasoning_content": "?"},
        {"content": "Let me look."},
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
        {},
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_thought_can_be_left_out(app, thinking):
    answer = await ask(app, CHAT, {**SAY, "include_reasoning": False})
    assert b"reasoning_content" not in answer.body
    streamed = await ask(app, CHAT, {**SAY, "stream": True, "include_reasoning": False})
    assert b"reasoning_content" not in streamed.body
    assert b"Let me look." in streamed.body


async def test_response_has_an_item_of_each_kind(app, thinking):
    body = (await ask(app, RESPONSES, SAY_RESPONSES)).json()
    name = body["id"].removeprefix("resp_")
    assert body["output"] == [
        {
            "id": f"rs_{name}",
            "status": "completed",
            "content": [{"text": "Rain?", "type": "reasoning_text"}],
            "summary": [],
            "type": "reasoning",
        },
        {
            "id": f"msg_{name}_1",
            "status": "completed",
            "content": [{"text": "Let me look.", "annotations": [], "logprobs": [], "type": "output_text"}],
            "role": "assistant",
            "type": "message",
        },
        {
            "id": f"fc_{name}_2",
            "status": "completed",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city": "Oslo"}',
            "type": "function_call",
        },
    ]


async def test_events_begin_and_end_each_item(app, thinking):
    events = [data for _, data in (await ask(app, RESPONSES, {**SAY_RESPONSES, "stream": True})).events()]
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    begun = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["status"] for item in begun] == ["in_progress"] * 3
    assert [item.get("content", item.get("arguments")) for item in begun] == [[], [], ""]
    assert [event["output_index"] for event in events if "output_index" in event][-1] == 2


async def test_answer_without_a_word_has_an_empty_message(app, world):
    world.set_options(text="", tokens=0)
    events = [data for _, data in (await ask(app, RESPONSES, {**SAY_RESPONSES, "stream": True})).events()]
    assert [event["type"].removeprefix("response.") for event in events[2:]] == [
        *("output_item.added", "content_part.added", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    [message] = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == ""
    assert message == (await ask(app, RESPONSES, SAY_RESPONSES)).json()["output"][0] | {"id": message["id"]}


@pytest.fixture
def calling(world, monkeypatch):
    """The engine calls two functions, whose pieces come in turn, with text between them."""
    pieces = [
        {"calls": (CallPiece("c1", "f", '{"x"'), CallPiece("c2", "g", '{"y"', 1))},
        {"text": "\n"},
        {"calls": (CallPiece(arguments=":2}", index=1),)},
        {"calls": (CallPiece(arguments=":1}"),)},
    ]

    async def generate(*_):
        yield Started(2, 0)
        for number, piece in enumerate(pieces, 1):
            yield Delta(usage=Usage(3, 2, number), **{"text": "", **piece})
        yield Finished(FinishReason.STOP, Usage(3, 2, len(pieces)))

    monkeypatch.setattr(world.engine, "generate", generate)


CALLS = [("c1", "f", '{"x":1}'), ("c2", "g", '{"y":2}')]


async def test_chat_chunks_have_the_index_of_each_call_as_its_pieces_come(app, calling):
    choices = [data["choices"] for _, data in (await ask(app, CHAT, {**SAY, "stream": True})).events()[:-1]]
    pieces = [piece for [choice] in choices for piece in choice["delta"].get("tool_calls", ())]
    assert [piece["index"] for piece in pieces] == [0, 0, 1, 1, 1, 0]
    found = [
        (
            *(piece["id"] for piece in pieces if piece["index"] == index and "id" in piece),
            "".join(piece["function"].get("name", "") for piece in pieces if piece["index"] == index),
            "".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == index),
        )
        for index in range(2)
    ]
    assert found == CALLS
    [choice] = (await ask(app, CHAT, SAY)).json()["choices"]
    whole = [(call["id"], *call["function"].values()) for call in choice["message"]["tool_calls"]]
    assert (whole, choice["finish_reason"]) == (CALLS, "tool_calls")


async def test_events_of_a_response_end_each_call_before_the_next(app, calling):
    events = [data for _, data in (await ask(app, RESPONSES, {**SAY_RESPONSES, "stream": True})).events()]
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    for items in (done, (await ask(app, RESPONSES, SAY_RESPONSES)).json()["output"]):
        calls = [(item["call_id"], item["name"], item["arguments"]) for item in items if item["type"] != "message"]
        assert calls == CALLS


async def test_blocks_of_a_message_end_each_call_before_the_next(app, calling):
    say = {**SAY, "max_tokens": 50}
    events = [data for _, data in (await ask(app, "/v1/messages", {**say, "stream": True})).events()]
    blocks = [event for event in events if event["type"].startswith("content_block")]
    assert [event["index"] for event in blocks] == sorted(event["index"] for event in blocks)
    begun = [event["content_block"] for event in blocks if event["type"] == "content_block_start"]
    written = [
        "".join(
            event["delta"].get("partial_json", "") for event in blocks if event["index"] == index and "delta" in event
        )
        for index in range(2)
    ]
    assert [
        (*(block[name] for name in ("id", "name")), text) for block, text in zip(begun, written, strict=False)
    ] == CALLS
    content = (await ask(app, "/v1/messages", say)).json()["content"]
    assert [(block["id"], block["input"]) for block in content[:2]] == [("c1", {"x": 1}), ("c2", {"y": 2})]
