"""What answers of all APIs tell in their headers: where routing led; and how their bodies are sent."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading

import pytest
from msgspec import structs

from gateway.generation.placement import route_headers
from inference.errors import OverloadedError
from inference.types import EngineFault, Finished, FinishReason, Usage
from tests.gateway.apis.client import ask
from tests.gateway.apis.server import sdk, serving, with_runtime
from tests.gateway.apis.world import KEY

HI = [{"role": "user", "content": "Hi"}]
CHATS = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
}
OTHERS = {
    "/v1/embeddings": {"model": "embedder", "input": "Hi"},
    "/v1/rerank": {"model": "ranker", "query": "Hi", "documents": ["Ho"]},
    "/v1/classify": {"model": "sorter", "input": "Hi", "labels": ["a", "b"]},
    "/v1/messages/count_tokens": {"model": "small", "messages": HI},
    "/v1/responses/input_tokens": {"model": "small", "input": "Hi"},
    "/v1/tokenize": {"model": "small", "prompt": "Hi"},
    "/v1/detokenize": {"model": "small", "tokens": [1]},
}


def told(answer):
    return answer.headers.get("x-sluice-model"), answer.headers.get("x-sluice-task")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CHATS)
async def test_answers_and_errors_from_routing_on_tell_model_and_task(app, world, path, stream):
    body = {"model": "small", "stream": stream, **CHATS[path]}
    task = {"x-sluice-task": "extract"}
    answer = await ask(app, path, body, headers=task)
    assert (answer.status, told(answer)) == (200, ("small", "extract"))
    world.set_credit(0)
    answer = await ask(app, path, body, headers=task)
    assert (answer.status, told(answer)) == (402, ("small", "extract"))
    answer = await ask(app, path, body | {"model": "none"}, headers=task)
    assert (answer.status, told(answer)) == (404, (None, None))


async def lost(*_):
    yield Finished(
        FinishReason.ERROR, Usage(), EngineFault("worker_lost", "It went away.", retryable=True), exact=False
    )


async def busy(*_):
    raise OverloadedError("It has too many requests.")
    yield


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("generate", [lost, busy])
async def test_answers_that_their_engine_fails_tell_it_too(app, world, monkeypatch, generate, stream):
    monkeypatch.setattr(world.engine, "generate", generate)
    answer = await ask(app, "/v1/chat/completions", {"model": "small", "messages": HI, "stream": stream})
    assert (answer.status, told(answer)[0]) == (503, "small")


@pytest.mark.parametrize("path", OTHERS)
async def test_what_is_no_chat_tells_its_model_too(app, path):
    answer = await ask(app, path, OTHERS[path])
    assert (answer.status, answer.headers["x-sluice-model"]) == (200, OTHERS[path]["model"])


@pytest.mark.parametrize("path", [path for path in OTHERS if "tok" in path and "detok" not in path])
async def test_a_count_that_its_engine_refuses_tells_the_model(app, path):
    text = "x" * 20_000
    over = {"prompt": text} if "prompt" in OTHERS[path] else {"input": text} if "input" in OTHERS[path] else {}
    over = over or {"messages": [{"role": "user", "content": text}]}
    answer = await ask(app, path, OTHERS[path] | over)
    assert (answer.status, told(answer)[0]) == (400, "small")


@pytest.mark.parametrize(("task", "header"), [("größe/ß 100%", "gr%C3%B6%C3%9Fe/%C3%9F 100%25"), ("a:b, c", "a:b, c")])
async def test_names_beyond_ascii_are_written_as_in_addresses(world, app, task, header):
    await ask(app, "/v1/completions", {"model": "small", "prompt": "Hi"})
    route = structs.replace(world.generations[0].route, task=task, model="org/big")
    assert route_headers(route) == {"x-sluice-model": "org/big", "x-sluice-task": header}


LONG = "long " * 2000
BIG = {"model": "small", "messages": HI, "max_tokens": 4096}


@pytest.fixture
def long_answers(world):
    """The model `small` says 10,000 characters."""
    world.set_options(text=LONG, max_context=1 << 20)


@pytest.mark.parametrize(
    ("accepts", "is_packed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP; q=0.5", True),
        ("*", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*;q=0", False),
    ],
)
async def test_a_large_answer_is_compressed_for_clients_that_take_it(app, long_answers, accepts, is_packed):
    answer = await ask(app, "/v1/chat/completions", BIG, headers={"accept-encoding": accepts})
    assert answer.headers.get("content-encoding") == ("gzip" if is_packed else None)
    assert answer.headers["vary"] == "accept-encoding"
    assert int(answer.headers["content-length"]) == len(answer.body)
    body = gzip.decompress(answer.body) if is_packed else answer.body
    assert json.loads(body)["choices"][0]["message"]["content"] == LONG


async def test_a_large_answer_is_sent_plain_while_another_is_compressed(app, long_answers, monkeypatch):
    begun, released, compress = threading.Event(), threading.Event(), gzip.compress

    def held(*args, **more):
        begun.set()
        assert released.wait(60)
        return compress(*args, **more)

    async def answer():
        return await ask(app, "/v1/chat/completions", BIG, headers={"accept-encoding": "gzip"})

    monkeypatch.setattr(gzip, "compress", held)
    first = asyncio.create_task(answer())
    assert await asyncio.to_thread(begun.wait, 60)
    try:
        async with asyncio.timeout(30):
            second = await answer()
    finally:
        released.set()
    assert (second.headers.get("content-encoding"), second.headers["vary"]) == (None, "accept-encoding")
    assert int(second.headers["content-length"]) == len(second.body)
    assert json.loads(second.body)["choices"][0]["message"]["content"] == LONG
    assert [one.headers.get("content-encoding") for one in (await first, await answer())] == ["gzip"] * 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "small", "messages": HI}),
        ("/v1/chat/completions", BIG | {"stream": True}),
        ("/v1/chat/completions", BIG | {"model": LONG}),
    ],
    ids=["small", "stream", "error"],
)
async def test_small_answers_streams_and_errors_are_sent_as_they_are(app, world, path, body):
    if body.get("stream"):
        world.set_options(text=LONG, max_context=1 << 20)
    answer = await ask(app, path, body, headers={"accept-encoding": "gzip"})
    assert not {"content-encoding", "vary"} & answer.headers.keys()
    assert answer.body.startswith((b"{", b"data:"))


async def test_the_server_sends_what_is_compressed_whole(world, long_answers):
    async with serving(with_runtime(world.runtime)) as address, sdk(KEY, address) as client:
        raw = await client.chat.completions.with_raw_response.create(**BIG)
    assert raw.headers["content-encoding"] == "gzip"
    assert raw.parse().choices[0].message.content == LONG
