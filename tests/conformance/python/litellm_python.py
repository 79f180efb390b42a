"""LiteLLM as a client."""

from __future__ import annotations

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched

import litellm
from lines import BASE_URL, KEY, URL, check, line, run
from pydantic import BaseModel

SAYS = "Oslo lies by the sea."
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]
HI = [{"role": "user", "content": "Where is Oslo?"}]
TO = {"api_base": BASE_URL, "api_key": KEY, "num_retries": 0}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}]


class City(BaseModel):
    name: str
    people: int


@line("completion")
def whole():
    answer = litellm.completion(model="openai/talks", messages=HI, **TO)
    check((answer.choices[0].message.content, answer.usage.completion_tokens), (SAYS, 5))


@line("completion, streamed, with usage")
def streamed():
    said = litellm.completion(
        model="openai/talks", messages=HI, stream=True, stream_options={"include_usage": True}, **TO
    )
    built = litellm.stream_chunk_builder(list(said), messages=HI)
    check((built.choices[0].message.content, built.usage.completion_tokens), (SAYS, 5))


@line("completion: a loop of five calls")
def loop():
    messages, asked = list(HI), []
    for _ in range(6):
        message = litellm.completion(model="openai/calls-five", messages=messages, tools=TOOLS, **TO).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            asked.append(json.loads(call.function.arguments)["city"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    check((message.content, asked), ("It rains everywhere.", CITIES))


@line("completion: a class of pydantic as format")
def structured():
    answer = litellm.completion(model="openai/writes-json", messages=HI, response_format=City, **TO)
    check(City.model_validate_json(answer.choices[0].message.content), City(name="Oslo", people=7))


@line("completion: reasoning")
def reasons():
    message = litellm.completion(model="openai/thinks", messages=HI, **TO).choices[0].message
    check((message.content, message.reasoning_content), (SAYS, "Where is it?"))


@line("text_completion")
def text():
    answer = litellm.text_completion(model="text-completion-openai/talks", prompt="Where is Oslo?", **TO)
    check(answer.choices[0].text, SAYS)


@line("responses, whole and streamed")
def responses():
    answer = litellm.responses(model="openai/talks", input="Where is Oslo?", **TO)
    check(answer.output[0].content[0].text, SAYS)
    events = list(litellm.responses(model="openai/talks", input="Where is Oslo?", stream=True, **TO))
    check(str(events[-1].type.value), "response.completed")


@line("anthropic: completion over Messages")
def messages():
    answer = litellm.completion(
        model="anthropic/talks", messages=HI, max_tokens=64, api_base=URL, api_key=KEY, num_retries=0
    )
    check(answer.choices[0].message.content, SAYS)


@line("embedding")
def embedding():
    made = litellm.embedding(model="openai/embeds", input=["Oslo", "Bergen"], **TO)
    check([len(item["embedding"]) for item in made.data], [64, 64])


@line("errors are LiteLLM's own")
def errors():
    try:
        litellm.completion(model="openai/nothing", messages=HI, **TO)
    except litellm.NotFoundError:
        return
    raise AssertionError("no NotFoundError")


if __name__ == "__main__":
    run()
