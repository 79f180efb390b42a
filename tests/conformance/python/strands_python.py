"""Strands Agents, over Chat and over Messages."""

from __future__ import annotations

from lines import BASE_URL, KEY, URL, check, line, run
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

KINDS = {
    "Chat": lambda model: OpenAIModel(client_args={"api_key": KEY, "base_url": BASE_URL}, model_id=model),
    "Messages": lambda model: AnthropicModel(
        client_args={"api_key": KEY, "base_url": URL}, model_id=model, max_tokens=200
    ),
}


class City(BaseModel):
    """A city and how many people live there."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def agent(kind, model, **more):
    return Agent(model=KINDS[kind](model), callback_handler=None, **more)


for name in KINDS:

    @line(f"{name}: an answer, and a second turn")
    def answer(kind=name):
        guide = agent(kind, "talks")
        for asked in ("Where is Oslo?", "And Bergen?"):
            check(str(guide(asked)).strip(), "Oslo lies by the sea.")

    @line(f"{name}: a tool loop of five calls")
    def loop(kind=name):
        check(str(agent(kind, "calls-five", tools=[weather])("How is it?")).strip(), "It rains everywhere.")

    @line(f"{name}: a class of pydantic as output")
    def output(kind=name):
        told = agent(kind, "calls-City")("Oslo", structured_output_model=City)
        check(told.structured_output, City(name="Oslo", people=7))


if __name__ == "__main__":
    run()
