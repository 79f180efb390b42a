"""Mirascope, over Chat, Responses and Messages."""

from __future__ import annotations

import os

from lines import BASE_URL, KEY, URL, check, line, run

os.environ.update(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=BASE_URL, ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=URL)

from mirascope import llm
from pydantic import BaseModel

SAYS = "Oslo lies by the sea."
KINDS = {"Chat": "openai/{}:completions", "Responses": "openai/{}:responses", "Messages": "anthropic/{}"}


class City(BaseModel):
    name: str
    people: int


@llm.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def asks(kind, model, **more):
    @llm.call(KINDS[kind].format(model), **more)
    def ask():
        return "Where is Oslo?"

    return ask


for name in KINDS:

    @line(f"{name}: an answer")
    def answer(kind=name):
        check(asks(kind, "talks")().text(), SAYS)

    @line(f"{name}: an answer, streamed")
    def streamed(kind=name):
        check("".join(asks(kind, "talks").stream().text_stream()).strip(), SAYS)

    @line(f"{name}: a tool loop of five calls")
    def loop(kind=name):
        told, turns = asks(kind, "calls-five", tools=[weather])(), 0
        while told.tool_calls:
            told, turns = told.resume(told.execute_tools()), turns + 1
        check((told.text(), turns), ("It rains everywhere.", 5))

    @line(f"{name}: a class of pydantic as format")
    def parsed(kind=name):
        check(asks(kind, "writes-json", format=City)().parse(), City(name="Oslo", people=7))


if __name__ == "__main__":
    run()
