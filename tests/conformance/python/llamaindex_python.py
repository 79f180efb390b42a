"""LlamaIndex, with its packages for OpenAI and for servers like it."""

from __future__ import annotations

from lines import BASE_URL, KEY, check, line, run
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

SAYS = "Oslo lies by the sea."
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]
HI = [ChatMessage(role="user", content="Where is Oslo?")]


class City(BaseModel):
    """A city."""

    name: str
    people: int


OSLO = City(name="Oslo", people=7)


def chat(model, **more):
    given = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 8192, **more}
    return OpenAILike(model=model, api_key=KEY, api_base=BASE_URL, max_retries=0, **given)


def weather_of(asked):
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain"

    return FunctionTool.from_defaults(weather)


@line("complete, by its default over /v1/completions")
def complete():
    model = chat("talks", is_chat_model=False)
    check(model.complete("Where is Oslo?").text, SAYS)
    check(list(model.stream_complete("Where is Oslo?"))[-1].text, SAYS)


@line("chat")
def whole():
    check(chat("talks").chat(HI).message.content, SAYS)


@line("chat, streamed")
def streamed():
    check(list(chat("talks").stream_chat(HI))[-1].message.content, SAYS)


@line("chat: a call of a tool")
def called():
    model = chat("calls")
    answer = model.chat_with_tools([weather_of([])], user_msg="How is Oslo?")
    check([call.tool_kwargs for call in model.get_tool_calls_from_response(answer)], [{"city": "Oslo"}])


@line("an agent's loop of five calls, streamed")
async def agent():
    asked = []
    told = await FunctionAgent(tools=[weather_of(asked)], llm=chat("calls-five")).run("How is the weather?")
    check((str(told), asked), ("It rains everywhere.", CITIES))


@line("structured output, by a function")
def by_function():
    check(chat("calls-City").as_structured_llm(City).complete("Oslo").raw, OSLO)


@line("structured output, by a schema")
def by_schema():
    model = chat("writes-json", should_use_structured_outputs=True)
    check(model.as_structured_llm(City).complete("Oslo").raw, OSLO)


@line("Responses")
def responses():
    model = OpenAIResponses(model="talks", api_key=KEY, api_base=BASE_URL, max_retries=0, context_window=8192)
    check(model.chat(HI).message.content, SAYS)
    check("".join(piece.delta or "" for piece in model.stream_chat(HI)), SAYS)


@line("embeddings")
def embeddings():
    made = OpenAILikeEmbedding(model_name="embeds", api_key=KEY, api_base=BASE_URL, max_retries=0)
    check([len(one) for one in made.get_text_embedding_batch(["Oslo", "Bergen"])], [64, 64])


if __name__ == "__main__":
    run()
