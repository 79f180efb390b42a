"""Agno's agents, over Chat, Responses and Messages."""

from __future__ import annotations

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.openai import OpenAIChat, OpenAIResponses
from lines import BASE_URL, KEY, URL, check, line, run
from pydantic import BaseModel

KINDS = {
    "Chat": lambda model: OpenAIChat(id=model, base_url=BASE_URL, api_key=KEY),
    "Responses": lambda model: OpenAIResponses(id=model, base_url=BASE_URL, api_key=KEY),
    "Messages": lambda model: Claude(id=model, api_key=KEY, client_params={"base_url": URL}),
}


class City(BaseModel):
    name: str
    people: int


def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def agent(kind, model, **more):
    return Agent(model=KINDS[kind](model), telemetry=False, **more)


for name in KINDS:

    @line(f"{name}: an answer")
    def answer(kind=name):
        check(agent(kind, "talks").run("Where is Oslo?").content, "Oslo lies by the sea.")

    @line(f"{name}: a tool loop of five calls")
    def loop(kind=name):
        check(agent(kind, "calls-five", tools=[weather]).run("How is it?").content, "It rains everywhere.")

    @line(f"{name}: a tool loop of five calls, streamed")
    def streamed(kind=name):
        events = agent(kind, "calls-five", tools=[weather]).run("How is it?", stream=True)
        check("".join(event.content or "" for event in events), "It rains everywhere.")

    @line(f"{name}: a class of pydantic as output")
    def output(kind=name):
        check(agent(kind, "writes-json", output_schema=City).run("Oslo").content, City(name="Oslo", people=7))


if __name__ == "__main__":
    run()
