"""instructor, in its modes for OpenAI's API and for Anthropic's."""

from __future__ import annotations

import instructor
from anthropic import Anthropic
from lines import BASE_URL, KEY, URL, check, line, run
from openai import OpenAI
from pydantic import BaseModel

HI = [{"role": "user", "content": "Oslo"}]


class City(BaseModel):
    """A city."""

    name: str
    people: int


OSLO = {"name": "Oslo", "people": 7}
MODES = {
    "TOOLS": "calls-City",
    "TOOLS_STRICT": "calls-City",
    "JSON": "writes-json",
    "JSON_SCHEMA": "writes-json",
    "MD_JSON": "writes-json",
    "RESPONSES_TOOLS": "calls-City",
}

for name, model in MODES.items():

    @line(f"mode {name}")
    def mode(name=name, model=model):
        openai = OpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0)
        client = instructor.from_openai(openai, mode=instructor.Mode[name])
        made = client.create(model=model, messages=HI, response_model=City, max_retries=1)
        check(made.model_dump(), OSLO)


@line("mode TOOLS, a partial object streamed")
def partial():
    openai = OpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0)
    client = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)
    seen = list(client.create_partial(model="calls-PartialCity", messages=HI, response_model=City, max_retries=1))
    check((seen[-1].name, seen[-1].people), ("Oslo", 7))


@line("mode ANTHROPIC_TOOLS")
def anthropic():
    client = instructor.from_anthropic(Anthropic(api_key=KEY, base_url=URL, max_retries=0))
    made = client.create(model="calls-City", messages=HI, response_model=City, max_tokens=200, max_retries=1)
    check(made.model_dump(), OSLO)


if __name__ == "__main__":
    run()
