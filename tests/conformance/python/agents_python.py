"""OpenAI's Agents SDK for Python, over Responses (HTTP and websocket) and over Chat."""

from __future__ import annotations

from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    ToolsToFinalOutputResult,
    function_tool,
    set_tracing_disabled,
)
from lines import BASE_URL, KEY, check, line, run
from openai import AsyncOpenAI
from pydantic import BaseModel

SMOL = "smollm2-135m-instruct"
SAYS = "Oslo lies by the sea."
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]
KINDS = {
    "Responses": OpenAIResponsesModel,
    "Responses over a websocket": OpenAIResponsesWSModel,
    "Chat": OpenAIChatCompletionsModel,
}

set_tracing_disabled(True)


class City(BaseModel):
    name: str
    people: int


def model_of(kind, model):
    return KINDS[kind](model=model, openai_client=AsyncOpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0))


def weather_of(asked):
    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain"

    return weather


for name in KINDS:

    @line(f"{name}: an answer")
    async def answer(kind=name):
        told = await Runner.run(Agent("Guide", instructions="Be brief.", model=model_of(kind, "talks")), "Oslo?")
        check(told.final_output, SAYS)

    @line(f"{name}: a tool loop of five calls")
    async def loop(kind=name):
        asked = []
        agent = Agent("Forecaster", model=model_of(kind, "calls-five"), tools=[weather_of(asked)])
        told = await Runner.run(agent, "How is the weather?")
        check((told.final_output, asked), ("It rains everywhere.", CITIES))

    @line(f"{name}: a tool loop of five calls, streamed")
    async def streamed(kind=name):
        asked = []
        agent = Agent("Forecaster", model=model_of(kind, "calls-five"), tools=[weather_of(asked)])
        told = Runner.run_streamed(agent, "How is the weather?")
        async for _ in told.stream_events():
            pass
        check((told.final_output, asked), ("It rains everywhere.", CITIES))

    @line(f"{name}: a handoff")
    async def handoff(kind=name):
        model = model_of(kind, "hands-over")
        geographer = Agent("Geographer", handoff_description="Knows places.", model=model)
        told = await Runner.run(Agent("Guide", model=model, handoffs=[geographer]), "Where is Oslo?")
        check((told.final_output, told.last_agent.name), (SAYS, "Geographer"))

    @line(f"{name}: a class of pydantic as output")
    async def structured(kind=name):
        told = await Runner.run(Agent("Clerk", model=model_of(kind, "writes-json"), output_type=City), "Oslo")
        check(told.final_output, City(name="Oslo", people=7))

    @line(f"{name}: tools, then a class of pydantic")
    async def both(kind=name):
        asked = []
        agent = Agent("Clerk", model=model_of(kind, "calls-then-json"), tools=[weather_of(asked)], output_type=City)
        told = await Runner.run(agent, "Oslo")
        check((told.final_output, asked), (City(name="Oslo", people=7), ["Oslo"]))

    @line(f"{name}: a tool's choice is required")
    async def required(kind=name):
        asked = []
        settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
        model = model_of(kind, "calls")
        told = await Runner.run(Agent("F", model=model, tools=[weather_of(asked)], model_settings=settings), "How?")
        check((told.final_output, asked), ("It rains in Oslo.", ["Oslo"]))

    @line(f"{name}: a second turn of the same conversation")
    async def second(kind=name):
        agent = Agent("Guide", model=model_of(kind, "calls"), tools=[weather_of([])])
        first = await Runner.run(agent, "How is Oslo?")
        told = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "Thanks."}])
        check(told.final_output, "It rains in Oslo.")

    @line(f"{name}: SmolLM2, five calls by a strict schema")
    async def smol(kind=name):
        asked = []

        @function_tool
        def weather(city: Literal["Oslo", "Bergen", "Narvik"], days: Literal[1, 2, 3]) -> str:
            """The weather in a city, for some days."""
            asked.append((city, days))
            return "rain"

        def until_five(_context, _results):
            return ToolsToFinalOutputResult(is_final_output=len(asked) == 5, final_output=str(len(asked)))

        settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=100)
        agent = Agent(
            "Forecaster",
            model=model_of(kind, SMOL),
            tools=[weather],
            model_settings=settings,
            reset_tool_choice=False,
            tool_use_behavior=until_five,
        )
        check((await Runner.run(agent, "How is the weather in Oslo, Bergen and Narvik?")).final_output, "5")
        assert all(city in CITIES and days in {1, 2, 3} for city, days in asked), asked


for name in ("Responses", "Responses over a websocket"):

    @line(f"{name}: a second turn by previous_response_id")
    async def by_id(kind=name):
        settings = ModelSettings(store=True)
        agent = Agent("Guide", model=model_of(kind, "talks"), model_settings=settings)
        first = await Runner.run(agent, "Where is Oslo?")
        told = await Runner.run(agent, "And Bergen?", previous_response_id=first.last_response_id)
        check(told.final_output, SAYS)


if __name__ == "__main__":
    run()
