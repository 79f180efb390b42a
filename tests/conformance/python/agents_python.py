"""OpenAI's Agents SDK for Python, over Responses (HTTP and websocket) and over Chat."""

from __future__ import annotations

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from lines import BASE_URL, KEY, check, line, run
from openai import AsyncOpenAI
from pydantic import BaseModel

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
