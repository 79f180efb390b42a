"""Anthropic's SDK for Python."""

from __future__ import annotations

import anthropic
from anthropic import Anthropic, beta_tool
from lines import KEY, URL, check, line, run

SAYS = "Oslo lies by the sea."
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]
HI = [{"role": "user", "content": "Where is Oslo?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "The weather in a city.", "input_schema": SCHEMA}]

client = Anthropic(api_key=KEY, base_url=URL, max_retries=0)


@line("messages")
def messages():
    answer = client.messages.create(model="talks", messages=HI, max_tokens=64, system="Be brief.")
    check((answer.content[0].text, answer.stop_reason, answer.usage.output_tokens), (SAYS, "end_turn", 5))


@line("messages, streamed, with its helper")
def streamed():
    with client.messages.stream(model="talks", messages=HI, max_tokens=64) as stream:
        check("".join(stream.text_stream), SAYS)
        check(stream.get_final_message().usage.output_tokens, 5)


@line("messages, streamed as events")
def events():
    told = client.messages.create(model="talks", messages=HI, max_tokens=64, stream=True)
    kinds = [event.type for event in told if event.type != "ping"]
    check((kinds[0], kinds[-1]), ("message_start", "message_stop"))


@line("messages: cut by max_tokens, and by a stop sequence")
def cut():
    answer = client.messages.create(model="talks", messages=HI, max_tokens=2)
    check((answer.content[0].text, answer.stop_reason), ("Oslo lies", "max_tokens"))
    answer = client.messages.create(model="talks", messages=HI, max_tokens=64, stop_sequences=[" by"])
    check((answer.content[0].text, answer.stop_reason, answer.stop_sequence), ("Oslo lies", "stop_sequence", " by"))


@line("messages: a tool loop of five calls")
def loop():
    turns, asked = list(HI), []
    for _ in range(6):
        answer = client.messages.create(model="calls-five", messages=turns, tools=TOOLS, max_tokens=200)
        turns.append({"role": "assistant", "content": answer.content})
        called = [block for block in answer.content if block.type == "tool_use"]
        asked += [block.input["city"] for block in called]
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"} for block in called]
        turns.append({"role": "user", "content": results})
    check((answer.content[0].text, asked), ("It rains everywhere.", CITIES))


@line("messages: a tool loop by its tool runner")
def runner():
    asked = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain"

    told = client.beta.messages.tool_runner(model="calls-five", messages=HI, tools=[weather], max_tokens=200)
    check((told.until_done().content[0].text, asked), ("It rains everywhere.", CITIES))


@line("messages: a call streamed")
def call_streamed():
    with client.messages.stream(model="calls", messages=HI, tools=TOOLS, max_tokens=200) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    check((final.content[-1].input, final.stop_reason), ({"city": "Oslo"}, "tool_use"))
    assert "input_json" in kinds, kinds


@line("messages: a tool's choice")
def choice():
    say = {"model": "calls-two", "messages": HI, "tools": TOOLS, "max_tokens": 200}
    both = client.messages.create(**say, tool_choice={"type": "any"})
    check([block.type for block in both.content], ["tool_use", "tool_use"])
    one = client.messages.create(
        **say, tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    )
    check([block.type for block in one.content], ["tool_use"])


@line("messages: thinking")
def thinking():
    say = {"model": "thinks", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    answer = client.messages.create(messages=HI, **say)
    check([(block.type) for block in answer.content], ["thinking", "text"])
    check((answer.content[0].thinking, answer.content[1].text), ("Where is it?", SAYS))
    again = client.messages.create(messages=[*HI, {"role": "assistant", "content": answer.content}, *HI], **say)
    check(again.content[-1].text, SAYS)


@line("messages: cache_control is taken, and cached tokens are counted")
def cached():
    system = [{"type": "text", "text": "Be brief. " * 50, "cache_control": {"type": "ephemeral"}}]
    answer = client.messages.create(model="talks", messages=HI, max_tokens=64, system=system)
    assert answer.usage.cache_read_input_tokens > 0, answer.usage


@line("messages: an image is refused by a model that sees none")
def image():
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    try:
        client.messages.create(model="talks", messages=[{"role": "user", "content": content}], max_tokens=8)
    except anthropic.BadRequestError as error:
        check(error.body["error"]["type"], "invalid_request_error")
        return
    raise AssertionError("it was taken")


@line("count_tokens")
def count():
    found = client.messages.count_tokens(model="talks", messages=HI)
    made = client.messages.create(model="talks", messages=HI, max_tokens=64)
    usage = made.usage
    check(found.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0))


@line("models: listed")
def models():
    assert "talks" in {model.id for model in client.models.list()}


@line("errors are the SDK's own exceptions")
def errors():
    try:
        client.messages.create(model="nothing", messages=HI, max_tokens=8)
    except anthropic.NotFoundError as error:
        check((error.body["type"], error.body["error"]["type"]), ("error", "not_found_error"))
    else:
        raise AssertionError("no NotFoundError")
    try:
        client.with_options(api_key="sk-sluice-none").messages.create(model="talks", messages=HI, max_tokens=8)
    except anthropic.AuthenticationError:
        pass
    else:
        raise AssertionError("no AuthenticationError")
    try:
        with client.messages.stream(model="fails", messages=HI, max_tokens=64) as stream:
            stream.until_done()
    except anthropic.APIError:
        return
    raise AssertionError("a stream that failed ended like one that didn't")


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

if __name__ == "__main__":
    run()
