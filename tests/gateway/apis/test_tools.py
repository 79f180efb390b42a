"""Tools through the OpenAI SDK: a loop of five calls with the scripted engine, streamed and whole, over both APIs."""

from __future__ import annotations

import json

import pytest

from tests.gateway.apis.test_sdk import stage
from tests.gateway.world import assert_books, in_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]

CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather in a city.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", "strict": False, **FUNCTION}]


def call_of(city):
    return f'Let me look. <tool_call> {{"name": "weather", "arguments": {{"city": "{city}"}}}} </tool_call>'


SCRIPT = [*map(call_of, CITIES), "It rains everywhere."]


@pytest.mark.parametrize("streamed", [False, True])
async def test_five_calls_over_chat(tmp_path, streamed):
    async with stage(tmp_path, text="", script=SCRIPT) as (world, _runtime, client):
        messages, asked, ids = [{"role": "user", "content": "How is the weather?"}], [], set()
        for _ in range(len(SCRIPT)):
            if streamed:
                async with client.chat.completions.stream(model="fake", messages=messages, tools=TOOLS) as stream:
                    answer = await stream.get_final_completion()
            else:
                answer = await client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
            choice = answer.choices[0]
            messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
            if choice.finish_reason != "tool_calls":
                break
            assert choice.message.content == "Let me look."
            [call] = choice.message.tool_calls
            asked.append(json.loads(call.function.arguments)["city"])
            ids.add(call.id)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
        assert asked == CITIES
        assert len(ids) == len(CITIES)
        assert choice.finish_reason == "stop"
        assert choice.message.content == "It rains everywhere."
    await in_database(assert_books, world, records=len(SCRIPT))


@pytest.mark.parametrize("streamed", [False, True])
async def test_five_calls_over_responses(tmp_path, streamed):
    async with stage(tmp_path, text="", script=SCRIPT) as (_world, _runtime, client):
        items, asked = [{"role": "user", "content": "How is the weather?"}], []
        for _ in range(len(SCRIPT)):
            if streamed:
                async with client.responses.stream(model="fake", input=items, tools=RESPONSE_TOOLS) as stream:
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(model="fake", input=items, tools=RESPONSE_TOOLS)
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            [call] = calls
            asked.append(json.loads(call.arguments)["city"])
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        assert asked == CITIES
        assert response.output_text == "It rains everywhere."
        assert response.tools[0].name == "weather"


async def test_calls_in_parallel_and_only_one(tmp_path):
    both = call_of("Oslo") + "\n" + call_of("Bergen").removeprefix("Let me look. ")
    async with stage(tmp_path, text="", script=[both]) as (_world, _runtime, client):
        say = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
        answer = await client.chat.completions.create(**say)
        calls = answer.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Oslo", "Bergen"]
        assert calls[0].id != calls[1].id
        one = await client.chat.completions.create(**say, parallel_tool_calls=False)
        assert len(one.choices[0].message.tool_calls) == 1
        assert one.choices[0].finish_reason == "tool_calls"
        assert one.usage.completion_tokens < answer.usage.completion_tokens
        none = await client.chat.completions.create(**say, tool_choice="none")
        assert none.choices[0].message.tool_calls is None
        assert none.choices[0].message.content == both
        other = {"type": "function", "function": {"name": "time"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [other]}}
        refused = await client.chat.completions.create(**(say | {"tools": [*TOOLS, other]}), tool_choice=allowed)
        assert refused.choices[0].message.content == both  # a call of what may not be called is text


async def test_thought_stands_apart(tmp_path):
    text = "<think> Where is it? </think> In Oslo."
    async with stage(tmp_path, text=text, thinks=True) as (_world, _runtime, client):
        say = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
        whole = await client.chat.completions.create(**say)
        assert whole.choices[0].message.content == "In Oslo."
        assert whole.choices[0].message.reasoning_content == "Where is it?"
        assert whole.usage.completion_tokens == 7
        assert whole.usage.completion_tokens_details.reasoning_tokens == 5
        again = await client.chat.completions.create(**say, reasoning_effort="low")
        assert again.choices[0].message.content == "In Oslo."
        response = await client.responses.create(model="fake", input="Hi")
        assert [item.type for item in response.output] == ["reasoning", "message"]
        assert response.output[0].content[0].text == "Where is it?"
        assert response.usage.output_tokens_details.reasoning_tokens == 5
