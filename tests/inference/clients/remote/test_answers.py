"""Several answers of one request, each a request of its own at the server; and prompts that are echoed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing
from dataclasses import replace

import pytest

from inference.errors import InvalidRequestError, OverloadedError
from inference.types import Delta, FinishReason, Usage, seed_of
from tests.inference.engine_contract import chat, end_of, run, text_of
from tests.upstream import Plan

CHAT, RAW = "/v1/chat/completions", "/v1/completions"
ALL = ["vllm", "sglang", "tgi", "trtllm", "llamacpp", "generic"]
PROMPT = 8  # tokens of "a b c d" in a chat


def answers_of(events):
    """The texts by the answers' numbers, and how each ended."""
    texts, ends = defaultdict(str), {}
    for event in events:
        if isinstance(event, Delta):
            texts[event.index] += event.text
            if event.ended is not None:
                ends[event.index] = event.ended
    return dict(texts), ends


@pytest.mark.parametrize("dialect", ALL)
async def test_each_answer_is_a_request_with_a_seed_of_its_own(remote, dialect):
    engine, upstream = await remote(dialect, cached=2)
    request = chat("a b c d", n=3, seed=7)
    prepared = await engine.prepare(request)
    alone = await engine.prepare(chat("a b c d"))
    assert (prepared.prompt_tokens, prepared.max_output) == (3 * alone.prompt_tokens, 3 * alone.max_output)
    events = await run(engine, request)
    texts, ends = answers_of(events)
    assert texts == dict.fromkeys(range(3), "a b c d")
    assert ends == dict.fromkeys(range(3), FinishReason.STOP)
    end = end_of(events)
    assert (end.reason, end.stop, end.exact, end.is_estimate) == (FinishReason.STOP, None, True, False)
    assert end.usage == Usage(input=3 * (PROMPT - 2), cache_read=3 * 2, output=3 * 4)
    bodies = upstream.bodies(CHAT)
    seeds = [seed_of(7, index) for index in range(3)]
    bits = {"llamacpp": 32, "tgi": 64}.get(dialect, 64)
    assert [body["seed"] % 2**bits for body in bodies] == [seed % 2**bits for seed in seeds]
    assert not any("n" in body for body in bodies)
    assert len(upstream.served) == 3


async def test_pieces_of_all_answers_come_in_turn_with_the_usage_of_all(remote):
    engine, upstream = await remote(stall_at=3)
    request = chat("a b c d", n=2)
    async with aclosing(engine.generate(await engine.prepare(request), 100, True)) as events:
        seen = set()
        async for event in events:
            if isinstance(event, Delta) and event.text:
                seen.add(event.index)
            if seen == {0, 1}:
                break
        assert event.usage.prompt == 2 * PROMPT
        upstream.released.set()
        texts, _ = answers_of([event async for event in events])
    assert set(texts) == {0, 1}


@pytest.mark.parametrize(
    ("allowance", "asked"),
    [
        (6, [2, 2, 2]),
        (7, [3, 2, 2]),
        (2, [1, 1]),
    ],
)
async def test_an_allowance_is_divided_between_the_answers(remote, allowance, asked):
    engine, upstream = await remote()
    events = await run(engine, chat("a b c d", n=3), allowance)
    end = end_of(events)
    assert sorted((body["max_tokens"] for body in upstream.bodies(CHAT)), reverse=True) == asked
    assert (end.reason, end.usage.completion) == (FinishReason.ALLOWANCE, allowance)
    assert answers_of(events)[1] == dict.fromkeys(range(3), FinishReason.ALLOWANCE)


async def test_a_server_that_refuses_the_first_is_not_asked_for_the_others(remote):
    engine, upstream = await remote(status=503)
    with pytest.raises(OverloadedError):
        await run(engine, chat("a", n=3))
    assert len(upstream.bodies(CHAT)) == 1


@pytest.mark.parametrize("plan", [{"status": 503}, {"die_at": 3}, {"error_at": 1}], ids=["refused", "cut", "failed"])
@pytest.mark.parametrize("most_running", [2, 9], ids=["queued", "running"])
async def test_an_answer_that_fails_ends_the_others(remote, plan, most_running):
    """Those that run and those that wait for a place; else the servers' silence would end them much later."""
    engine, upstream = await remote(options={"concurrency": most_running}, stall_at=3)
    upstream.plans = [Plan(stall_at=2), Plan(**plan)]
    async with asyncio.timeout(60):
        events = await run(engine, chat("a b c d", n=4))
    end = end_of(events)
    assert (end.reason, end.error is not None) == (FinishReason.ERROR, True)
    ends = answers_of(events)[1]
    assert sorted(ends.values()) == [FinishReason.CANCELLED] * 3 + [FinishReason.ERROR]
    assert ends[0] is FinishReason.CANCELLED
    await upstream.until(lambda: not upstream.running)


@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_all_answers_stop_together(remote, way):
    engine, upstream = await remote(stall_at=2)
    request = chat("a b c d", n=3)
    stream = engine.generate(await engine.prepare(request), 100, True)
    events = []
    async with aclosing(stream):
        async for event in stream:
            events.append(event)
            if len(upstream.running) == 3:
                if way == "close":
                    break
                await engine.cancel(request.id)
    await upstream.until(lambda: len(upstream.aborted) == 3)
    assert not (await engine.health()).running
    if way == "cancel":
        assert end_of(events).reason is FinishReason.CANCELLED


async def test_an_answer_waits_for_the_place_of_one_before_it(remote):
    engine, upstream = await remote(options={"concurrency": 1, "queue_seconds": 0.01}, pace=0.01)
    async with asyncio.timeout(60):
        events = await run(engine, chat("a b c d", n=3))
    assert answers_of(events)[0] == dict.fromkeys(range(3), "a b c d")
    assert upstream.most_running == 1


async def test_more_answers_than_may_wait_get_their_places_in_turn(remote):
    engine, upstream = await remote(options={"concurrency": 2, "queue": 4})
    async with asyncio.timeout(60):
        events = await run(engine, chat("a b c d", n=16))
    assert answers_of(events)[1] == dict.fromkeys(range(16), FinishReason.STOP)
    assert upstream.most_running == 2


@pytest.mark.parametrize("n", [1, 2])
async def test_an_echoed_prompt_stands_before_each_answer_and_is_no_output(remote, n):
    engine, upstream = await remote("generic")
    request = replace(chat("", echo=True, n=n), messages=(), prompt="one two")
    events = await run(engine, request)
    texts, _ = answers_of(events)
    assert texts == dict.fromkeys(range(n), "one twoone two")  # it answers with its prompt
    assert end_of(events).usage.completion == 2 * n
    assert not any("echo" in body for body in upstream.bodies(RAW))


async def test_a_prompt_of_token_ids_is_not_echoed(remote):
    engine, _ = await remote("vllm")
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(replace(chat("", echo=True), messages=(), prompt=(1, 2)))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "echo")


async def test_one_answer_has_no_end_of_its_own(remote):
    engine, _ = await remote()
    events = await run(engine, chat("a b", n=1))
    assert (text_of(events), answers_of(events)[1]) == ("a b", {})
