"""What agents ask of a model, on the real small one: unmodified SDKs, and requests as programs send them. Calls and
tokens are counted: a scripted engine writes what it was told to, whatever holds its answer.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import anthropic
import openai
import pytest

from tests import first_models
from tests.services.ports import lease_port
from tests.stack.stack import Stack, environment_of, share_kernels

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.model]

MODEL = "smollm2-135m-instruct"
HI = [{"role": "user", "content": "How is the weather in Oslo?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather in a city."}
MOST = 120  # tokens; a call has some 30


@pytest.fixture(scope="module")
def stack():
    """Sluice as quickstart makes it, with the first models."""
    models = first_models.made()
    with tempfile.TemporaryDirectory(prefix="sluice-agents-") as folder:
        home = Path(folder)
        for model in models.values():
            shutil.copytree(model, home / "models" / model.name, copy_function=os.link)
        share_kernels(home)
        running = Stack(home, environment_of(home, SLUICE_ENV="development"), lease_port(), {})
        try:
            done = running.command("quickstart", "--json", "--port", str(running.port))
            assert done.returncode == 0, done.stderr
            running.tenants = {"demo": json.loads(done.stdout)}
            running.start()
            yield running
            assert running.stop() == 0, "".join(running.said[-40:])
        finally:
            running.close()


@pytest.fixture
def of_openai(stack):
    with openai.OpenAI(
        api_key=stack.tenants["demo"]["api_key"], base_url=f"{stack.base_url}/v1", max_retries=4
    ) as client:
        yield client


@pytest.fixture
def of_anthropic(stack):
    key = stack.tenants["demo"]["api_key"]
    with anthropic.Anthropic(api_key=key, base_url=stack.base_url, max_retries=4) as client:
        yield client


def by_chat(client, *, stream):
    """Names and arguments of the calls, why the answer ended, and its tokens."""
    say = {
        "model": MODEL,
        "messages": HI,
        "tools": [{"type": "function", "function": {**WEATHER, "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": MOST,
        "temperature": 0,
    }
    if stream:
        with client.chat.completions.stream(**say, stream_options={"include_usage": True}) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**say)
    [chosen] = answer.choices
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in chosen.message.tool_calls]
    return calls, chosen.finish_reason, answer.usage.completion_tokens


def by_responses(client, *, stream):
    say = {
        "model": MODEL,
        "input": HI,
        "tools": [{"type": "function", **WEATHER, "parameters": SCHEMA, "strict": False}],
        "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": MOST,
        "temperature": 0,
    }
    if stream:
        with client.responses.stream(**say) as events:
            answer = events.get_final_response()
    else:
        answer = client.responses.create(**say)
    calls = [(item.name, json.loads(item.arguments)) for item in answer.output]
    return calls, answer.status, answer.usage.output_tokens


def by_messages(client, *, stream):
    say = {
        "model": MODEL,
        "messages": HI,
        "tools": [{**WEATHER, "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "weather"},
        "max_tokens": MOST,
    }
    if stream:
        with client.messages.stream(**say) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**say)
    calls = [(block.name, block.input) for block in answer.content]
    return calls, answer.stop_reason, answer.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("ask", "of", "ended"),
    [
        (by_chat, "of_openai", "tool_calls"),
        (by_responses, "of_openai", "completed"),
        (by_messages, "of_anthropic", "tool_use"),
    ],
    ids=["chat", "responses", "messages"],
)
def test_a_function_that_is_named_is_called_once(request, ask, of, ended, stream):
    [(name, arguments)], reason, tokens = ask(request.getfixturevalue(of), stream=stream)
    assert (name, reason) == ("weather", ended)
    assert set(arguments) == {"city"}
    assert tokens < MOST


def test_codex_says_hello(of_openai):
    """The request of Codex CLI: a summary of the reasoning, tools in a namespace, hosted ones, hints and notes."""
    body = {
        "model": MODEL,
        "instructions": "You are a coding agent.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}],
        "tools": [
            {"type": "function", **WEATHER, "strict": False, "parameters": SCHEMA},
            {
                "type": "namespace",
                "name": "mcp__calendar",
                "description": "A calendar.",
                "tools": [{"type": "function", "name": "find", "strict": False, "parameters": SCHEMA}],
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199f0c1",
        "text": {"verbosity": "low"},
        "max_output_tokens": 24,
        "extra_body": {"client_metadata": {"x-codex-installation-id": "1b9d6bcd"}},
    }
    with of_openai.responses.with_streaming_response.create(**body) as answer:
        told = answer.headers["x-sluice-not-enforced"].split(", ")
        kinds = [line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: ")]
    assert kinds[0] == "response.created"
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    assert {"reasoning.summary", "reasoning.effort", "text.verbosity", "prompt_cache_key"} < set(told)
    with pytest.raises(openai.BadRequestError) as caught:
        of_openai.responses.create(**{**body, "stream": False, "tools": [{"type": "web_search"}]})
    assert "hosted tools are left out" in caught.value.message


def test_claude_codes_next_request_finds_its_prompt_in_the_cache(of_anthropic):
    """Each of its requests has another note for its own provider as the first block of the instructions."""

    def ask_it(number):
        billing = f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={number};"
        system = [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are a coding agent. " * 40, "cache_control": {"type": "ephemeral"}},
        ]
        answer = of_anthropic.messages.with_raw_response.create(
            model=MODEL, max_tokens=4, system=system, messages=HI, thinking={"type": "adaptive"}
        )
        told = answer.headers["x-sluice-not-enforced"].split(", ")
        assert {"system[].x-anthropic-billing-header", "system[].cache_control", "thinking"} == set(told)
        return answer.parse().usage

    first, second = ask_it("1f3c8"), ask_it("a07d2")
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens
    assert second.input_tokens <= 16  # what is behind the last whole block of the cache
