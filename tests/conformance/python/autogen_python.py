"""AutoGen's agents, over Chat Completions."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lines import BASE_URL, KEY, check, line, run
from pydantic import BaseModel

ABLE = ("function_calling", "json_output", "structured_output", "multiple_system_messages")
INFO = {"vision": False, "family": "unknown", **dict.fromkeys(ABLE, True)}
ASKED = [UserMessage(content="Where is Oslo?", source="user")]
SAYS = "Oslo lies by the sea."


class City(BaseModel):
    name: str
    people: int


async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def model(name):
    return OpenAIChatCompletionClient(model=name, base_url=BASE_URL, api_key=KEY, model_info=INFO, max_retries=0)


async def told(name, **more):
    agent = AssistantAgent("guide", model(name), **more)
    return (await agent.run(task="How is the weather?")).messages[-1].content


@line("an answer")
async def answer():
    check((await model("talks").create(ASKED)).content, SAYS)


@line("an answer, streamed, with usage")
async def streamed():
    *_, last = [piece async for piece in model("talks").create_stream(ASKED, include_usage=True)]
    check((last.content, last.usage.completion_tokens), (SAYS, 5))


for how, stream in (("", False), (", streamed", True)):

    @line(f"an agent's loop of five calls{how}")
    async def loop(stream=stream):
        more = {"tools": [weather], "max_tool_iterations": 6, "model_client_stream": stream}
        check(await told("calls-five", **more), "It rains everywhere.")


@line("an agent reflects on its tool's result")
async def reflects():
    check(await told("calls", tools=[weather], reflect_on_tool_use=True), "It rains in Oslo.")


@line("a class of pydantic as an agent's output")
async def output():
    check(await told("writes-json", output_content_type=City), City(name="Oslo", people=7))


if __name__ == "__main__":
    run()
