"""Models that come and go while Sluice serves, and prompts that a real tokenizer refuses."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import save_tiny
from tests.stack.stack import PATIENCE, assert_books_are_right
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a tiny random model with a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    folder.mkdir()
    return save_tiny("llama", folder, vocab_size=save_tokenizer(folder))


def key_of(stack):
    return stack.tenants["max"]["key"]


def served(stack):
    listed = ask(f"{stack.base_url}/v1/models", key=key_of(stack)).json["data"]
    return {model["id"] for model in listed} - {"auto"}


def state_of(stack, deployment):
    """What /readyz says of a deployment; nothing when it isn't listed."""
    return ask(f"{stack.base_url}/readyz").json["deployments"].get(deployment)


async def stream(stack, started, max_tokens, model="long-chat"):
    """Read one stream to its end; set `started` after some tokens."""
    events = []
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {key_of(stack)}"}
    async with (
        aiohttp.ClientSession(stack.base_url, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session,
        session.post("/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        async for line in answer.content:
            if line.startswith(b"data: "):
                events.append(line[6:].decode().strip())
            if len(events) == 5:
                started.set()
    return events


async def streams_during(stack, change, *lengths):
    """Run streams of these lengths, call `change` once all have tokens, and return what each client saw."""
    started = [asyncio.Event() for _ in lengths]
    reading = [
        asyncio.create_task(stream(stack, event, length)) for event, length in zip(started, lengths, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in started))
    await asyncio.to_thread(change)
    return await asyncio.gather(*reading)


def settled(stack, events):
    """The usage record of a stream's request, by the id in its chunks."""
    request = json.loads(events[0])["id"]
    page = ask(f"{stack.base_url}/v1/usage/{request}", key=key_of(stack))
    assert page.status == 200
    return page.json


def test_models_come_and_go_while_streams_run(stack, tiny):
    """The worker loads and lets go of models beside its streams: each runs to its end and is charged exactly."""
    before = served(stack)
    worker = stack.pid_of("worker")
    said = []

    def come_and_go():
        said.append(stack.manage("models", "add", str(tiny), "--name", "passing"))
        while served(stack) != before | {"passing"}:
            time.sleep(0.05)  # as below
        assert "passing  chat" in stack.manage("models", "list")
        say = {
            "model": "passing",
            "messages": [{"role": "user", "content": "the quick brown fox"}],
            "max_tokens": 5,
            "ignore_eos": True,  # which a random model may say at any time
        }
        while (answer := ask(f"{stack.base_url}/v1/chat/completions", say, key=key_of(stack))).status == 503:
            time.sleep(0.05)  # as below
        assert answer.status == 200
        assert answer.json["usage"]["completion_tokens"] == 5
        said.append(stack.manage("models", "remove", "passing"))
        while state_of(stack, "passing") is not None:
            time.sleep(0.05)  # bounded by the test's timeout
        gone = ask(f"{stack.base_url}/v1/chat/completions", say, key=key_of(stack))
        assert (gone.status, gone.json["error"]["code"]) == (404, "model_not_found")

    length = 1000
    (events,) = asyncio.run(streams_during(stack, come_and_go, length))
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == length
    assert settled(stack, events)["usage"]["output_tokens"] == length
    assert stack.pid_of("worker") == worker
    assert said[0].splitlines()[-1].startswith("served: passing, context 512 tokens")
    assert "withdrawn" in said[1]
    assert served(stack) == before
    assert "passing" not in stack.manage("models", "list")
    found = stack.audit()
    assert_books_are_right(found)
    engine = {request: usage for request, usage in found["engine"].items() if usage}
    assert {request: row["classes"] for request, row in found["usage"].items() if row["classes"]} == engine


def test_a_model_that_is_refused_is_withdrawn_again(stack, tmp_path):
    folder = tmp_path / "no-attention"
    folder.mkdir()
    save_tiny("mamba", folder, vocab_size=save_tokenizer(folder))
    with pytest.raises(AssertionError, match="refused is not served: model refused: "):  # exit code 1
        stack.manage("models", "add", str(folder), "--name", "refused")
    while "refused" in served(stack):
        time.sleep(0.05)  # the gateway follows within a second; bounded by the test's timeout
    assert "refused" not in stack.manage("models", "list")
