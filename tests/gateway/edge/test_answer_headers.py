"""What answers of all APIs tell in their headers: where routing led; and how their bodies are sent."""

from __future__ import annotations


import pytest
from msgspec import structs

from gateway.generation.placement import route_headers
from inference.errors import OverloadedError
from inference.types import EngineFault, Finished, FinishReason, Usage
from tests.gateway.edge.client import ask

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
