"""Hugging Face's smolagents, over Chat Completions."""

from __future__ import annotations

from lines import BASE_URL, KEY, check, line, run
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

ASKED = [{"role": "user", "content": [{"type": "text", "text": "Where is Oslo?"}]}]
SAYS = "Oslo lies by the sea."


@tool
def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.

    """
    return f"rain in {city}"


def model(name):
    return OpenAIServerModel(name, api_base=BASE_URL, api_key=KEY)


def told(name, **more):
    agent = ToolCallingAgent([weather], model(name), verbosity_level=0, **more)
    return agent, agent.run("How is the weather in Oslo?")


@line("an answer")
def answer():
    check(model("talks")(ASKED).content, SAYS)


@line("an answer, streamed, with usage")
def streamed():
    pieces = list(model("talks").generate_stream(ASKED))
    check("".join(piece.content or "" for piece in pieces), SAYS)
    assert any(piece.token_usage for piece in pieces)


@line("an agent's final answer")
def final():
    check(told("calls-final_answer")[1], "It rains.")


@line("an agent's final answer, streamed")
def final_streamed():
    check(told("calls-final_answer", stream_outputs=True)[1], "It rains.")


@line("an agent's tool is called")
def tools():
    agent, _ = told("calls", max_steps=1)
    check(
        [call.arguments for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()],
        [{"city": "Oslo"}],
    )


if __name__ == "__main__":
    run()
