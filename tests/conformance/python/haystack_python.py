"""Haystack's generators, agents and embedders for OpenAI's APIs."""

from __future__ import annotations

from haystack import Document
from haystack.components.agents import Agent
from haystack.components.embedders import OpenAIDocumentEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from lines import BASE_URL, KEY, check, line, run
from pydantic import BaseModel

SAYS = "Oslo lies by the sea."
WHERE = {"api_key": Secret.from_token(KEY), "api_base_url": BASE_URL}
KINDS = {"Chat": OpenAIChatGenerator, "Responses": OpenAIResponsesChatGenerator}


class City(BaseModel):
    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def ignore(_):
    """A stream's pieces are put together by the library."""


for name, kind in KINDS.items():
    for how, callback in (("", None), (", streamed", ignore)):

        @line(f"{name}: an answer{how}")
        def answer(kind=kind, callback=callback):
            generator = kind(model="talks", streaming_callback=callback, **WHERE)
            check(generator.run([ChatMessage.from_user("Where is Oslo?")])["replies"][0].text, SAYS)

        for strict in (False, True):

            @line(f"{name}: an agent's loop of five calls{how}{', strict' if strict else ''}")
            def loop(kind=kind, callback=callback, strict=strict):
                generator = kind(model="calls-five", tools_strict=strict, **WHERE)
                told = Agent(chat_generator=generator, tools=[weather], streaming_callback=callback).run(
                    [ChatMessage.from_user("Oslo?")]
                )
                check(told["messages"][-1].text, "It rains everywhere.")

    @line(f"{name}: reasoning")
    def reasoning(kind=kind):
        reply = kind(model="thinks", **WHERE).run([ChatMessage.from_user("Where is Oslo?")])["replies"][0]
        check(reply.text, SAYS)


@line("Chat: a class of pydantic as format")
def parsed():
    generator = OpenAIChatGenerator(model="writes-json", generation_kwargs={"response_format": City}, **WHERE)
    text = generator.run([ChatMessage.from_user("Oslo")])["replies"][0].text
    check(City.model_validate_json(text), City(name="Oslo", people=7))


@line("embeddings")
def embeddings():
    embedder = OpenAIDocumentEmbedder(model="embeds", progress_bar=False, **WHERE)
    documents = embedder.run([Document(content="Oslo"), Document(content="Bergen")])["documents"]
    check([len(document.embedding) for document in documents], [64, 64])


if __name__ == "__main__":
    run()
