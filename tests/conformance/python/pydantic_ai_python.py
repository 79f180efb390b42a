"""pydantic-ai, over Chat, Responses and Messages."""

from __future__ import annotations

from lines import BASE_URL, KEY, URL, check, line, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

SAYS = "Oslo lies by the sea."
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]


class City(BaseModel):
    name: str
    people: int


OSLO = City(name="Oslo", people=7)


def chat(model):
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


def responses(model):
    return OpenAIResponsesModel(model, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


def messages(model):
    # The client knows by a model's name whether it holds answers to schemas, unless it is told.
    profile = AnthropicModelProfile(supports_json_schema_output=True)
    return AnthropicModel(model, provider=AnthropicProvider(base_url=URL, api_key=KEY), profile=profile)


def forecaster(model, asked, **more):
    agent = Agent(model, **more)

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain"

    return agent


for name, made in (("Chat", chat), ("Responses", responses), ("Messages", messages)):

    @line(f"{name}: an answer, with usage")
    async def answer(made=made):
        told = await Agent(made("talks")).run("Where is Oslo?")
        check(told.output, SAYS)

    @line(f"{name}: streamed")
    async def streamed(made=made):
        async with Agent(made("talks")).run_stream("Where is Oslo?") as told:
            check(await told.get_output(), SAYS)

    @line(f"{name}: a tool loop of five calls")
    async def loop(made=made):
        asked = []
        told = await forecaster(made("calls-five"), asked).run("How is the weather?")
        check((told.output, asked), ("It rains everywhere.", CITIES))

    @line(f"{name}: a second turn, with its history")
    async def second(made=made):
        agent = forecaster(made("calls"), [])
        first = await agent.run("How is Oslo?")
        told = await agent.run("Thanks.", message_history=first.all_messages())
        check(told.output, "It rains in Oslo.")

    @line(f"{name}: output by a function")
    async def by_function(made=made):
        check((await Agent(made("calls-final_result"), output_type=City).run("Oslo")).output, OSLO)

    @line(f"{name}: output by a schema")
    async def by_schema(made=made):
        check((await Agent(made("writes-json"), output_type=NativeOutput(City)).run("Oslo")).output, OSLO)

    @line(f"{name}: tools, then output by a schema")
    async def both(made=made):
        asked = []
        told = await forecaster(made("calls-then-json"), asked, output_type=NativeOutput(City)).run("Oslo")
        check((told.output, asked), (OSLO, ["Oslo"]))


@line("Chat: reasoning")
async def reasons():
    told = await Agent(chat("thinks")).run("Where is Oslo?")
    thoughts = [part.content for part in told.all_messages()[-1].parts if part.part_kind == "thinking"]
    check((told.output, thoughts), (SAYS, ["Where is it?"]))


if __name__ == "__main__":
    run()
