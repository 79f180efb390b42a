"""Two workers, one of them over tcp with keys: one dies in the middle of seeded streams, which end as without that."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import aiohttp
import pytest

from tests.stack.stack import PATIENCE, assert_books_are_right

pytestmark = [pytest.mark.stack, pytest.mark.slow]

STREAMS = 20
TOKENS = 200  # 4 s
ROOM = {"request_limit": 10**6, "request_burst": 10**6, "credit_limit": 10**12, "credit_burst": 10**12}


async def stream(session, tenant, seed, started):
    """Return the text of a seeded stream and the usage that it ends with."""
    body = {
        "model": "drawn-chat",
        "messages": [{"role": "user", "content": "the quick brown fox jumps over the end"}],
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, usage, count = [], None, 0
    headers = {"Authorization": f"Bearer {tenant['key']}"}
    async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line == b"data: [DONE]\n":
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            usage = event.get("usage") or usage
            text += [choice["delta"].get("content") or "" for choice in event["choices"]]
            count += 1
            if count == 4:
                started.set()
    started.set()
    return "".join(text), usage


async def streams(stack, tenant, when_started=lambda: None, others=()):
    """Return what each of the streams gave, and the `others` after them (which take an event to set once they have
    begun); `when_started` is called once all of them have begun.
    """
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(stack.base_url, timeout=timeout) as session:
        started = [asyncio.Event() for _ in range(STREAMS + len(others))]
        reading = [stream(session, tenant, seed, event) for seed, event in enumerate(started[:STREAMS])]
        reading += [other(session, stack, event) for other, event in zip(others, started[STREAMS:], strict=True)]
        tasks = [asyncio.create_task(one) for one in reading]
        await asyncio.gather(*(event.wait() for event in started))
        when_started()
        return await asyncio.gather(*tasks)


async def stream_of_one_node(session, stack, started):
    """Return the events of a stream that no other node can go on with."""
    body = {"model": "long-chat", "messages": [{"role": "user", "content": "go on"}], "stream": True}
    headers = {"Authorization": f"Bearer {stack.tenants['free']['key']}"}
    events = []
    async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                events.append(line[6:].decode().strip())
            if len(events) == 5:
                started.set()
    return events


@pytest.mark.parametrize("victim", ["far", "local"])
def test_streams_whose_worker_is_killed_end_with_the_text_they_would_have_had(cluster, stack, victim):
    tenant = stack.tenant(f"without-{victim}", 10**10, allowed_models=[], concurrency=64, **ROOM)
    expected = asyncio.run(streams(stack, tenant))
    assert all(usage["completion_tokens"] == len(text) == TOKENS for text, usage in expected)
    assert len({text for text, _ in expected}) == STREAMS, "each seed has a text of its own"

    def kill():
        if victim == "local":
            stack.kill("worker")
        else:
            os.kill(cluster.far_worker(), signal.SIGKILL)

    moved = sum("request_moved" in line for line in stack.said)
    others = [stream_of_one_node] if victim == "local" else []
    got = asyncio.run(streams(stack, tenant, kill, others))
    lost = got[STREAMS:]
    del got[STREAMS:]
    assert [text for text, _ in got] == [text for text, _ in expected]
    for (_, usage), (_, other) in zip(got, expected, strict=True):
        assert usage["completion_tokens"] == other["completion_tokens"]
        assert usage["prompt_tokens"] == other["prompt_tokens"]
    stack.wait_until_said(lambda said: sum("request_moved" in line for line in said) > moved)
    found = cluster.settled()
    assert_books_are_right(found)
    charged = [row for row in found["usage"].values() if row["tenant"] == tenant["id"]]
    assert len(charged) == 2 * STREAMS, "each is charged once"
    assert all(row["exact"] and not row["waived"] for row in charged)
    for events in lost:
        [error] = [json.loads(event)["error"] for event in events if '"error"' in event]
        assert error["code"] == "worker_lost"
        record = found["usage"][error["request_id"].replace("-", "")]
        assert record["finish"] == "worker_lost"
        assert record["classes"]["output"] >= 4, "what was delivered is charged"
    cluster.wait_until_ready()
