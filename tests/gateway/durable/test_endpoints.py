"""Every endpoint that generates: one answer and one charge under a key, in its own format."""

from __future__ import annotations

import asyncio

import pytest

from routing.services.catalogue import add_model
from tests.gateway.durable.conftest import chat
from tests.gateway.world import assert_books, in_database, make_world

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]

ASKED = {
    "/v1/chat/completions": chat(n=2),
    "/v1/completions": {"model": "fake", "prompt": "a"},
    "/v1/responses": {"model": "fake", "input": "a"},
    "/v1/messages": {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]},
    "/v1/embeddings": {"model": "fake", "input": ["a", "b"]},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ASKED)
async def test_one_answer_under_a_key(gateway, path, stream):
    body = ASKED[path] if path == "/v1/embeddings" else ASKED[path] | {"stream": stream}
    async with gateway(tokens=5) as bench:
        answers = await asyncio.gather(*(bench.ask(body, path=path).finished() for _ in range(3)))
        answers.append(await bench.ask(body, path=path).finished())
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
    await in_database(assert_books, bench.world, records=1)


@pytest.mark.parametrize("stream", [True, False])
async def test_more_prompts_than_the_plan_runs_at_once_wait_for_no_settlement(gateway, stream):
    """What has ended is settled with the whole answer, and leaves its place to those that wait."""
    body = {"model": "fake", "prompt": ["a", "b", "c", "d", "e", "f"], "stream": stream}
    async with gateway(tokens=5, terms={"concurrency": 2}) as bench:
        answer = await bench.ask(body, path="/v1/completions").finished()
        again = await bench.ask(body, path="/v1/completions").finished()
        assert answer.status == 200
        assert answer.body == again.body
        assert answer.body.count(b"w5") == 6
    await in_database(assert_books, bench.world, records=6)


def with_labels():
    """A world with a model that answers chats by classifying them."""
    world = make_world()
    add_model(
        name="labels", kinds=["classification"], context_length=256, rate_card="fake-card", source="", backend="fake"
    )
    return world


@pytest.mark.parametrize("stream", [True, False])
async def test_one_label_under_a_key(gateway, stream):
    body = chat("Labels: red, blue\n\nmy blue car", stream=stream, model="labels")
    async with gateway(world=await in_database(with_labels)) as bench:
        answers = await asyncio.gather(*(bench.ask(body).finished() for _ in range(3)))
        answers.append(await bench.ask(body).finished())
        assert {answer.status for answer in answers} == {200}
        [told] = {answer.body for answer in answers}
        assert told.count(b'"blue"') == 1
    _, [record] = await in_database(assert_books, bench.world, records=1)
    assert (record.endpoint, record.input_tokens, record.output_tokens) == ("chat.completions", 5, 0)
