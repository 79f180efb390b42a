"""LangChain for Python, with its packages for OpenAI and Anthropic."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from lines import BASE_URL, KEY, URL, check, line, run
from pydantic import BaseModel

SAYS = "Oslo lies by the sea."
CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"]


class City(BaseModel):
    """A city."""

    name: str
    people: int


OSLO = City(name="Oslo", people=7)


def chat(model, **more):
    return ChatOpenAI(model=model, api_key=KEY, base_url=BASE_URL, max_retries=0, **more)


def responses(model, **more):
    return chat(model, use_responses_api=True, **more)


def messages(model, **more):
    return ChatAnthropic(model=model, api_key=KEY, base_url=URL, max_retries=0, **more)


def weather_of(asked):
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain"

    return weather


def text_of(message):
    return message.text if isinstance(message.text, str) else message.text()


for name, made in (("Chat", chat), ("Responses", responses), ("Messages", messages)):

    @line(f"{name}: invoke, with usage")
    def invoke(made=made):
        answer = made("talks").invoke("Where is Oslo?")
        check((text_of(answer), answer.usage_metadata["output_tokens"]), (SAYS, 5))

    @line(f"{name}: stream, with usage")
    def stream(made=made):
        pieces = list(made("talks", stream_usage=True).stream("Where is Oslo?"))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        check((text_of(whole), whole.usage_metadata["output_tokens"]), (SAYS, 5))

    @line(f"{name}: batch")
    def batch(made=made):
        check([text_of(answer) for answer in made("talks").batch(["a", "b"])], [SAYS, SAYS])

    @line(f"{name}: bind_tools, streamed")
    def bind_tools(made=made):
        model = made("calls").bind_tools([weather_of([])])
        pieces = list(model.stream("How is Oslo?"))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        check([call["args"] for call in whole.tool_calls], [{"city": "Oslo"}])

    @line(f"{name}: an agent's loop of five calls")
    def agent(made=made):
        asked = []
        agent = create_agent(made("calls-five"), [weather_of(asked)])
        told = agent.invoke({"messages": [("user", "How is the weather?")]})
        check((text_of(told["messages"][-1]), asked), ("It rains everywhere.", CITIES))

    @line(f"{name}: an agent's calls in parallel, streamed")
    def parallel(made=made):
        asked = []
        agent = create_agent(made("calls-two"), [weather_of(asked)])
        list(agent.stream({"messages": [("user", "How is the weather?")]}, stream_mode="messages"))
        check(sorted(asked), ["Bergen", "Oslo"])

    @line(f"{name}: with_structured_output, by a schema")
    def structured(made=made):
        model = made("writes-json").with_structured_output(City, method="json_schema")
        check(model.invoke("Oslo"), OSLO)

    @line(f"{name}: with_structured_output, by a function")
    def by_function(made=made):
        check(made("calls-City").with_structured_output(City, method="function_calling").invoke("Oslo"), OSLO)


@line("Chat: with_structured_output, as a JSON object")
def json_mode():
    check(chat("writes-json").with_structured_output(City, method="json_mode").invoke("Oslo, as JSON"), OSLO)


@line("Chat: a tool's choice is required, and one call at most")
def required():
    model = chat("calls-two").bind_tools([weather_of([])], tool_choice="any", parallel_tool_calls=False)
    check(len(model.invoke("How is it?").tool_calls), 1)


@line("Responses: a second turn by previous_response_id")
def second_turn():
    model = responses("talks", use_previous_response_id=True, store=True)
    first = model.invoke("Where is Oslo?")
    second = model.invoke([("user", "Where is Oslo?"), first, ("user", "And Bergen?")])
    check(text_of(second), SAYS)


@line("completions")
def completions():
    model = OpenAI(model="talks", api_key=KEY, base_url=BASE_URL, max_retries=0)
    check(model.invoke("Where is Oslo?"), SAYS)
    check("".join(model.stream("Where is Oslo?")), SAYS)


@line("embeddings")
def embeddings():
    made = OpenAIEmbeddings(
        model="embeds", api_key=KEY, base_url=BASE_URL, max_retries=0, check_embedding_ctx_length=False
    )
    check(len(made.embed_query("Oslo")), 64)


if __name__ == "__main__":
    run()
