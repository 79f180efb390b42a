"""Processes die in mid-stream; streams end with one clear error and a right charge, and nothing stays held."""

from __future__ import annotations

import asyncio
import json
import signal

import aiohttp
import pytest

from tests.stack.clients import read_stream
from tests.stack.stack import PATIENCE, assert_books_are_right, assert_nothing_is_left, running_stack

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ASKED = 2000  # tokens: 100 s of them


@pytest.fixture(scope="module")
def slow_stack():
    """A stack whose tokens take their time, so that processes can die between them."""
    with running_stack(chat={"step_seconds": 0.05, "text": "word " * 2000}) as running:
        yield running


def chat(stack, tenant, **more):
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "go on"}], "stream": True, **more}
    return {"json": body, "headers": {"Authorization": f"Bearer {stack.tenants[tenant]['key']}"}}


async def streams_with_a_kill(stack, child):
    """Start a stream for each tenant, kill `child` once all have tokens, and return what each client saw."""
    async with aiohttp.ClientSession(stack.base_url, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        started = [asyncio.Event() for _ in stack.tenants]
        reading = [
            asyncio.create_task(read_stream(session, chat(stack, tenant, max_tokens=ASKED), event))
            for tenant, event in zip(stack.tenants, started, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in started))
        stack.kill(child)
        return await asyncio.gather(*reading)


async def until_answered(stack):
    """Ask until the stack answers again; bounded by the test's timeout."""
    async with aiohttp.ClientSession(stack.base_url) as session:
        while True:
            try:
                async with session.post("/v1/chat/completions", **chat(stack, "free", max_tokens=3)) as answer:
                    if answer.status == 200:
                        return await answer.text()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def test_killed_worker_ends_streams_with_one_error_and_comes_back(slow_stack):
    for events in asyncio.run(streams_with_a_kill(slow_stack, "worker")):
        errors = [json.loads(event)["error"] for event in events if '"error"' in event]
        assert len(errors) == 1
        assert errors[0]["code"] == "worker_lost"
        assert errors[0]["request_id"]
    asyncio.run(until_answered(slow_stack))
    found = slow_stack.audit()
    assert_books_are_right(found)
    lost = [record for record in found["usage"].values() if record["finish"] == "worker_lost"]
    assert len(lost) == 3
    assert all(record["classes"]["output"] >= 4 for record in lost), "what was delivered is charged"


def test_killed_gateway_stops_its_generations_and_the_sweep_settles_them(slow_stack):
    before = {request for request, record in slow_stack.audit()["usage"].items() if record["exact"]}
    seen = asyncio.run(streams_with_a_kill(slow_stack, "gateway"))
    assert all(events[-1].startswith("cut") or "[DONE]" not in events for events in seen)
    asyncio.run(until_answered(slow_stack))
    found = slow_stack.audit()
    swept = {request: record for request, record in found["usage"].items() if record["exact"] and request not in before}
    ended = [record for record in swept.values() if record["finish"] == "cancelled"]
    assert len(ended) == 3
    for request, record in swept.items():
        assert record["classes"] == found["engine"][request]
    assert all(0 < record["classes"]["output"] < ASKED for record in ended), "stopped before their end"


def test_sigterm_in_mid_stream_leaves_no_process_socket_or_hold(slow_stack):
    """The gateway settles what ran before it goes."""

    async def ended():
        async with aiohttp.ClientSession(slow_stack.base_url, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
            started = asyncio.Event()
            reading = asyncio.create_task(read_stream(session, chat(slow_stack, "max", max_tokens=ASKED), started))
            await started.wait()
            said = len(slow_stack.said)
            code = await asyncio.to_thread(slow_stack.stop, signal.SIGTERM)
            return code, await reading, slow_stack.said[said:]

    code, events, said = asyncio.run(ended())
    assert code == 0
    assert json.loads(events[-1])["error"]["code"] == "server_draining"
    assert [line for line in said if "Traceback" in line] == []
    assert_nothing_is_left(slow_stack)
