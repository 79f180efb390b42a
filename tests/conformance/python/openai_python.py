"""OpenAI's SDK for Python."""

from __future__ import annotations

import io
import json
import time
from typing import Literal

import openai
from lines import BASE_URL, KEY, check, line, run
from openai import AsyncOpenAI, OpenAI
from openai.types import CompletionUsage, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import BaseModel

SMOL = "smollm2-135m-instruct"
SAYS = "Oslo lies by the sea."
HI = [{"role": "user", "content": "Where is Oslo?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather in a city.", "parameters": SCHEMA, "strict": True}
TOOLS = [{"type": "function", "function": WEATHER}]
RESPONSE_TOOLS = [{"type": "function", **WEATHER}]
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]

client = OpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0)


class City(BaseModel):
    name: str
    people: int


OSLO = City(name="Oslo", people=7)


@line("chat")
def chat():
    answer = client.chat.completions.create(model="talks", messages=HI)
    check(answer.choices[0].message.content, SAYS)
    check(answer.choices[0].finish_reason, "stop")
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


@line("chat, streamed, with usage")
def chat_streamed():
    stream = client.chat.completions.create(
        model="talks", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    check("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), SAYS)
    assert isinstance(chunks[-1].usage, CompletionUsage)


@line("chat, cut by max_completion_tokens")
def chat_cut():
    answer = client.chat.completions.create(model="talks", messages=HI, max_completion_tokens=2)
    check((answer.choices[0].message.content, answer.choices[0].finish_reason), ("Oslo lies", "length"))


@line("chat: several answers")
def several():
    answer = client.chat.completions.create(model="talks", messages=HI, n=3)
    check([choice.index for choice in answer.choices], [0, 1, 2])


@line("chat: a tool loop of five calls")
def loop():
    messages, asked = list(HI), []
    for _ in range(6):
        answer = client.chat.completions.create(model="calls-five", messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            asked.append(json.loads(call.function.arguments)["city"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    check((asked, message.content), (CITIES, "It rains everywhere."))


@line("chat: a call streamed, with its helper")
def call_streamed():
    with client.chat.completions.stream(model="calls", messages=HI, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds, kinds
    check(json.loads(call.function.arguments), {"city": "Oslo"})


@line("chat: calls in parallel, and a required tool")
def parallel():
    say = {"model": "calls-two", "messages": HI, "tools": TOOLS, "tool_choice": "required"}
    check(len(client.chat.completions.create(**say).choices[0].message.tool_calls), 2)
    check(len(client.chat.completions.create(**say, parallel_tool_calls=False).choices[0].message.tool_calls), 1)


@line("chat: parse, with a class of pydantic")
def parse():
    answer = client.chat.completions.parse(model="writes-json", messages=HI, response_format=City)
    check(answer.choices[0].message.parsed, OSLO)


@line("chat: tools and a schema in one request")
def both():
    tool = openai.pydantic_function_tool(City)
    say = {"model": "calls-then-json", "tools": [*TOOLS, tool], "response_format": City}
    called = client.chat.completions.parse(messages=HI, **say).choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "rain"}
    answered = client.chat.completions.parse(messages=[*HI, called, result], **say)
    check(answered.choices[0].message.parsed, OSLO)


@line("chat: reasoning with an effort")
def reasons():
    message = client.chat.completions.create(model="thinks", messages=HI, reasoning_effort="low").choices[0].message
    check((message.content, message.reasoning_content), (SAYS, "Where is it?"))


@line("chat: stored")
def chat_stored():
    answer = client.chat.completions.create(model="talks", messages=HI, store=True)
    check(client.chat.completions.retrieve(answer.id).id, answer.id)


@line("completions")
def completions():
    answer = client.completions.create(model="talks", prompt="Where is Oslo?")
    check(answer.choices[0].text, SAYS)
    chunks = list(client.completions.create(model="talks", prompt=["a", "b"], stream=True))
    check({choice.index for chunk in chunks for choice in chunk.choices}, {0, 1})


@line("responses")
def responses():
    answer = client.responses.create(model="talks", input="Where is Oslo?", instructions="Be brief.")
    check((answer.output_text, answer.status), (SAYS, "completed"))


@line("responses, streamed, with its helper")
def responses_streamed():
    with client.responses.stream(model="talks", input="Where is Oslo?") as stream:
        kinds = [event.type for event in stream]
        check(stream.get_final_response().output_text, SAYS)
    check((kinds[0], kinds[-1]), ("response.created", "response.completed"))


@line("responses: a tool loop of five calls")
def response_loop():
    items, asked = list(HI), []
    for _ in range(6):
        answer = client.responses.create(model="calls-five", input=items, tools=RESPONSE_TOOLS)
        items += answer.output
        for item in answer.output:
            if item.type == "function_call":
                asked.append(json.loads(item.arguments)["city"])
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
    check((asked, answer.output_text), (CITIES, "It rains everywhere."))


@line("responses: parse, with a class of pydantic")
def response_parse():
    check(client.responses.parse(model="writes-json", input="Oslo", text_format=City).output_parsed, OSLO)
    with client.responses.stream(model="writes-json", input="Oslo", text_format=City) as stream:
        check(stream.get_final_response().output_parsed, OSLO)


@line("responses: reasoning items, given back")
def response_reasons():
    answer = client.responses.create(model="thinks", input=HI, reasoning={"effort": "low"})
    check([item.type for item in answer.output], ["reasoning", "message"])
    again = client.responses.create(
        model="thinks", input=[*HI, *answer.output, *HI], include=["reasoning.encrypted_content"]
    )
    check(again.output_text, SAYS)


@line("responses: a second turn by previous_response_id")
def second_turn():
    first = client.responses.create(model="talks", input="Where is Oslo?", store=True)
    second = client.responses.create(model="talks", input="And Bergen?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    check(second.previous_response_id, first.id)


@line("responses: stored, retrieved, its input listed, deleted")
def stored():
    made = client.responses.create(model="talks", input="Where is Oslo?", store=True)
    check(client.responses.retrieve(made.id).output_text, SAYS)
    [item] = client.responses.input_items.list(made.id)
    check(item.content[0].text, "Where is Oslo?")
    client.responses.delete(made.id)
    try:
        client.responses.retrieve(made.id)
    except openai.NotFoundError:
        return
    raise AssertionError("it's still there")


@line("responses: in the background, polled")
def background():
    made = client.responses.create(model="talks", input="Where is Oslo?", background=True, store=True)
    while made.status in {"queued", "in_progress"}:
        time.sleep(0.05)
        made = client.responses.retrieve(made.id)
    check(made.output_text, SAYS)


@line("responses: in the background, its stream resumed with starting_after")
def resumed():
    stream = client.responses.create(model="talks", input="Oslo?", background=True, store=True, stream=True)
    first = next(iter(stream))
    stream.close()
    events = list(client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))
    check(events[0].sequence_number, first.sequence_number + 1)
    check(events[-1].response.output_text, SAYS)


@line("responses: in the background, cancelled")
def cancelled():
    made = client.responses.create(model="talks-long", input="Count.", background=True, store=True)
    check(client.responses.cancel(made.id).status, "cancelled")


@line("responses: input tokens counted")
def counted():
    found = client.responses.input_tokens.count(model="talks", input="Where is Oslo?")
    made = client.responses.create(model="talks", input="Where is Oslo?")
    check(found.input_tokens, made.usage.input_tokens)


@line("SmolLM2: JSON by a schema, whole and streamed")
def smol():
    class Ticket(BaseModel):
        about: Literal["billing", "delivery", "login"]
        urgent: bool

    say = [{"role": "user", "content": "Classify: I was charged twice, help me now!"}]
    answer = client.chat.completions.parse(model=SMOL, messages=say, response_format=Ticket, max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, Ticket)
    with client.responses.stream(model=SMOL, input=say, text_format=Ticket, max_output_tokens=60) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Ticket)


@line("SmolLM2: a call, or else JSON by a schema")
def smol_both():
    class Ticket(BaseModel):
        about: Literal["billing", "delivery", "login"]

    say = {"model": SMOL, "messages": HI, "tools": TOOLS, "response_format": Ticket, "max_tokens": 100}
    say["parallel_tool_calls"] = False
    message = client.chat.completions.parse(**say).choices[0].message
    assert bool(message.tool_calls) != bool(message.content)
    assert message.tool_calls or isinstance(message.parsed, Ticket)
    called = client.chat.completions.create(
        **{**say, "response_format": {"type": "json_object"}}, tool_choice="required"
    )
    assert set(json.loads(called.choices[0].message.tool_calls[0].function.arguments)) == {"city"}


@line("responses over a websocket, with a second turn")
async def websocket():
    async with AsyncOpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0) as it, it.responses.connect() as socket:
        more: dict[str, str] = {}
        for _ in range(2):
            await socket.response.create(model="talks", input="Where is Oslo?", **more)
            async for event in socket:
                if event.type == "response.completed":
                    break
            check(event.response.output_text, SAYS)
            more = {"previous_response_id": event.response.id}


@line("responses over a websocket: a call, and its result")
async def websocket_call():
    async with AsyncOpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0) as it, it.responses.connect() as socket:
        await socket.response.create(model="calls", input="How is Oslo?", tools=RESPONSE_TOOLS)
        async for event in socket:
            if event.type == "response.completed":
                break
        call = event.response.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        await socket.response.create(
            model="calls", input=[result], previous_response_id=event.response.id, tools=RESPONSE_TOOLS
        )
        async for event in socket:
            if event.type == "response.completed":
                break
        check(event.response.output_text, "It rains in Oslo.")


@line("embeddings")
def embeddings():
    made = client.embeddings.create(model="embeds", input=["Oslo", "Bergen"])
    check([len(item.embedding) for item in made.data], [64, 64])
    again = client.embeddings.create(model="embeds", input="Oslo", encoding_format="float")
    check(again.data[0].embedding, made.data[0].embedding)


@line("models: listed and retrieved")
def models():
    assert {"talks", "embeds"} <= {model.id for model in client.models.list()}
    check(client.models.retrieve("talks").id, "talks")


@line("files: uploaded, listed, read, deleted")
def files():
    made = client.files.create(file=("lines.jsonl", io.BytesIO(b'{"a": 1}\n')), purpose="batch")
    assert made.id in {file.id for file in client.files.list()}
    check(client.files.content(made.id).content, b'{"a": 1}\n')
    check(client.files.delete(made.id).deleted, True)


@line("batches: made, polled, their output read in order")
def batches():
    body = {"model": "talks", "messages": HI}
    asked = [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(3)
    ]
    data = "\n".join(map(json.dumps, asked)).encode()
    file = client.files.create(file=("batch.jsonl", io.BytesIO(data)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.status not in {"completed", "failed", "expired", "cancelled"}:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    check(batch.status, "completed")
    told = [json.loads(row) for row in client.files.content(batch.output_file_id).text.splitlines()]
    check([row["custom_id"] for row in told], ["line-0", "line-1", "line-2"])
    check(told[0]["response"]["body"]["choices"][0]["message"]["content"], SAYS)


@line("errors are the SDK's own exceptions, with code and field")
def errors():
    def refusal(kind, ask, **fields):
        try:
            ask(**fields)
        except kind as error:
            return error.code, error.param
        raise AssertionError(f"no {kind.__name__}")

    ask = client.chat.completions.create
    check(refusal(openai.NotFoundError, ask, model="nothing", messages=HI), ("model_not_found", "model"))
    wrong = refusal(openai.BadRequestError, ask, model="talks", messages=HI, temperature=9)
    check(wrong[1], "temperature")
    stranger = client.with_options(api_key="sk-sluice-none").chat.completions.create
    check(refusal(openai.AuthenticationError, stranger, model="talks", messages=HI)[0], "invalid_api_key")
    try:
        list(ask(model="fails", messages=HI, stream=True))
    except openai.APIError:
        return
    raise AssertionError("a stream that failed ended like one that didn't")


@line("the same Idempotency-Key twice is one answer")
def idempotent():
    key = {"Idempotency-Key": f"conformance-{time.time_ns()}"}
    first, second = (client.chat.completions.create(model="talks", messages=HI, extra_headers=key) for _ in range(2))
    check(first.id, second.id)


@line("answers have the SDK's types, checked strictly")
def strict():
    raw = client.with_raw_response
    say = {"model": "calls", "messages": HI, "tools": TOOLS}
    ChatCompletion.model_validate_json(raw.chat.completions.create(**say).text)
    thought = {"model": "thinks", "input": "Hi", "reasoning": {"effort": "low"}}
    for fields in (thought, {"model": "calls", "input": "Hi", "tools": RESPONSE_TOOLS}):
        Response.model_validate_json(raw.responses.create(**fields).text)
    made = raw.embeddings.create(model="embeds", input="Oslo", encoding_format="float")
    CreateEmbeddingResponse.model_validate_json(made.text)
    with client.chat.completions.with_streaming_response.create(**say, stream=True) as told:
        for row in told.iter_lines():
            if row.startswith("data: {"):
                ChatCompletionChunk.model_validate_json(row[6:])


if __name__ == "__main__":
    run()
