"""Models that come and go while Sluice serves, and prompts that a real tokenizer refuses."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import save_tiny
from tests.stack.conftest import running_stack
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.xdist_group("stack")]

STEP = 0.02


@pytest.fixture(scope="module")
def stack():
    """Streams of 150 tokens take three seconds, less than the worker waits for them when it drains."""
    with running_stack(chat={"step_seconds": STEP, "text": "word " * 2000}) as running:
        yield running
        assert running.stop() == 0, "".join(running.said[-40:])


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


async def stream(stack, started, max_tokens, model="fake-chat"):
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
        aiohttp.ClientSession(stack.base_url, timeout=aiohttp.ClientTimeout(total=60)) as session,
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
    """The worker drains and starts again for each change; what ran ends in order and is charged exactly."""
    assert served(stack) == {"fake-chat", "fake-embed"}
    first_worker = stack.pid_of("worker")
    short, long = asyncio.run(
        streams_during(stack, lambda: stack.manage("models", "add", str(tiny), "--name", "tiny"), 60, 2000)
    )
    assert short[-1] == "[DONE]"
    assert json.loads(short[-2])["usage"]["completion_tokens"] == 60
    error = json.loads(long[-1])
    assert error["error"]["code"] == "generation_cancelled"
    record = settled(stack, long)
    assert record["is_exact"]
    assert 5 <= record["usage"]["output_tokens"] < 2000
    assert error["usage"]["completion_tokens"] == record["usage"]["output_tokens"]
    assert error["usage"]["credits_micro"] == record["usage"]["credits_micro"]

    while state_of(stack, "tiny") != "ready" or state_of(stack, "fake-chat") != "ready":
        pass
    assert stack.pid_of("worker") != first_worker
    assert served(stack) == {"fake-chat", "fake-embed", "tiny"}
    assert "tiny  chat" in stack.manage("models", "list")
    say = {"model": "tiny", "messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 5}
    answer = ask(f"{stack.base_url}/v1/chat/completions", say, key=key_of(stack))
    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 5

    (short,) = asyncio.run(streams_during(stack, lambda: stack.manage("models", "remove", "tiny"), 60))
    assert short[-1] == "[DONE]"
    while state_of(stack, "tiny") is not None or state_of(stack, "fake-chat") != "ready":
        pass
    assert served(stack) == {"fake-chat", "fake-embed"}
    gone = ask(f"{stack.base_url}/v1/chat/completions", say, key=key_of(stack))
    assert (gone.status, gone.json["error"]["code"]) == (404, "model_not_found")
    assert "tiny" not in stack.manage("models", "list")
    found = stack.audit()
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
    engine = {request: usage for request, usage in found["engine"].items() if usage}
    assert {request: row["classes"] for request, row in found["usage"].items() if row["classes"]} == engine
