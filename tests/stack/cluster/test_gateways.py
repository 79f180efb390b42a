"""PostgreSQL, Redis and two gateways on one port: limits as with one, and restarts that nobody notices."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import chain

import aiohttp
import pytest

from inference.worker.record import BEGUN, ENDED, kinds_in
from tests.services.ports import lease_port
from tests.stack.stack import PATIENCE, ROOT, assert_books_are_right
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

MOST_WORDS = 8000  # 160 s, so that both gateways are replaced before the end on a busy machine too
WORDS = 250  # 5 s
REFUSED = 'sluice_requests_total{endpoint="/v1/chat/completions",status="429"'
ROOM = {"request_limit": 10**6, "request_burst": 10**6, "credit_limit": 10**12, "credit_burst": 10**12}


def tenant(stack, slug, **terms):
    return stack.tenant(slug, **{**ROOM, "concurrency": 64, "allowed_models": [], **terms})["key"]


def call(key, **more):
    body = {"model": "long-chat", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 4, **more}
    return {"json": body, "headers": {"Authorization": f"Bearer {key}"}}


def session_of(stack, *, keeps=False):
    connector = aiohttp.TCPConnector(limit=0, force_close=not keeps)
    return aiohttp.ClientSession(stack.base_url, connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE))


async def burst(stack, key):
    """Return status and error code of each of 60 requests at once, each over a connection of its own."""
    async with session_of(stack) as session:

        async def one():
            async with session.post("/v1/chat/completions", **call(key)) as answer:
                return answer.status, (await answer.json()).get("error", {}).get("code")

        return await asyncio.gather(*(one() for _ in range(60)))


def granted(cluster, stack, key):
    """How many requests the key is granted until both gateways have refused some: of a burst, one may take all."""
    before, count = cluster.counted(REFUSED), 0
    while True:  # bounded by the test's timeout
        answers = asyncio.run(burst(stack, key))
        assert set(answers) <= {(200, None), (429, "rate_limit_exceeded")}
        count += answers.count((200, None))
        if all(now > then for now, then in zip(cluster.counted(REFUSED), before, strict=True)):
            return count


def test_bursts_get_exactly_what_the_plan_says_at_both_gateways(cluster, stack):
    key = tenant(stack, "bursting", request_limit=12, request_burst=12, request_period_s=36_000)
    assert granted(cluster, stack, key) == 12
    cluster.wait_until(lambda: cluster.counted("sluice_gateways") == [2, 2], "a gateway doesn't know of the other")


def most_at_once(record, earlier):
    """How many requests ran on the worker at once, those in `earlier` left out: by the order of its record, in which
    each stands before its first step and, before its client sees the end, at its end.
    """
    running = most = 0
    for kind, request in kinds_in(record):
        if request not in earlier:
            running += {BEGUN: 1, ENDED: -1}.get(kind, 0)
            most = max(most, running)
    return most


def test_concurrency_is_exactly_what_the_plan_says_and_all_get_their_turn(stack):
    key = tenant(stack, "crowded", concurrency=3)
    record = stack.records[0]
    earlier = {request for _, request in kinds_in(record)}

    async def crowd():
        async with session_of(stack) as session:

            async def one():
                async with session.post("/v1/chat/completions", **call(key, max_tokens=40)) as answer:
                    return answer.status

            return await asyncio.gather(*(one() for _ in range(20)))

    assert asyncio.run(crowd()) == [200] * 20
    assert len({request for _, request in kinds_in(record)} - earlier) == 20
    assert most_at_once(record, earlier) <= 3


def test_rolling_restart_fails_no_request_and_tells_long_ones_to_come_again(cluster, stack):
    """A stream and a WebSocket that outlast what a gateway that leaves waits for are told so; all else is answered."""
    key, before = stack.tenants["max"]["key"], set(stack.pids_of("gateway"))
    assert len(before) == 2
    said = len(stack.said)

    async def client(session, over):
        seen = []
        while not over.is_set():
            async with session.post("/v1/chat/completions", **call(key)) as answer:
                text = await answer.text()
                seen.append(answer.status if answer.status == 200 else text)
        return seen

    async def streaming(session, began):
        events = []
        async with session.post("/v1/chat/completions", **call(key, max_tokens=MOST_WORDS, stream=True)) as answer:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    events.append(line[6:].decode().strip())
                if len(events) == 3:
                    began.set()
        return events

    async def resting(session, began):
        async with session.ws_connect("/v1/responses", headers={"Authorization": f"Bearer {key}"}) as socket:
            began.set()
            events = [json.loads(message.data) async for message in socket]
            return events, socket.close_code

    async def roll():
        over, began, rests = asyncio.Event(), asyncio.Event(), asyncio.Event()
        async with session_of(stack) as fresh, session_of(stack, keeps=True) as kept:
            stream = asyncio.create_task(streaming(fresh, began))
            socket = asyncio.create_task(resting(fresh, rests))
            await began.wait()
            await rests.wait()
            clients = [asyncio.create_task(client(session, over)) for session in [fresh, kept] * 6]
            stack.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(PATIENCE):
                while before & set(stack.pids_of("gateway")):
                    await asyncio.sleep(0.1)
                    assert not any(one.done() for one in clients), [one for one in clients if one.done()]
            over.set()
            return await asyncio.gather(*clients), await stream, await socket

    seen, events, (told, code) = asyncio.run(roll())
    assert all(seen), "all of them asked all along"
    assert set(chain(*seen)) == {200}
    assert json.loads(events[-1])["error"]["code"] == "server_draining"
    assert code == 1012
    assert told[-1]["type"] == "error"
    assert told[-1]["error"]["code"] == "server_draining"
    asyncio.run(until(lambda: len(set(stack.pids_of("gateway")) - before) == 2))
    stack.wait_until_said(lambda lines: sum("is replaced" in line for line in lines[said:]) == 2)
    assert_books_are_right(cluster.settled())


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - other processes are what is waited for
            await asyncio.sleep(0.05)


@contextmanager
def without_redis(cluster):
    """Redis is away, and behind it back and used again."""
    cluster.redis.kill()
    try:
        yield
    finally:
        cluster.redis.start_again()
        cluster.wait_until(lambda: cluster.counted("sluice_limits_shared") == [1, 1], "Redis isn't used again")


def test_requests_go_on_without_redis_and_with_it_again(cluster, stack):
    key = stack.tenants["business"]["key"]
    with without_redis(cluster):
        for _ in range(20):
            assert ask(f"{stack.base_url}/v1/chat/completions", call(key)["json"], key=key).status == 200
        cluster.wait_until(lambda: cluster.counted("sluice_limits_shared") == [0, 0], "Redis isn't missed")
        ready = ask(f"http://127.0.0.1:{cluster.metrics_port}/readyz")
        assert (ready.status, "limits" in ready.json["notes"]) == (200, True)


def test_limits_without_redis_are_off_by_what_is_documented_and_no_more(cluster, stack):
    """Bucket and concurrency of docs/scaling.md: *B* more while Redis is away, another *B* when it comes back empty."""
    room = {"request_limit": 12, "request_burst": 12, "request_period_s": 36_000}
    key, crowded = tenant(stack, "outage", **room), tenant(stack, "crowded-outage", concurrency=4)
    record, charged = stack.records[0], len(cluster.settled()["usage"])
    assert granted(cluster, stack, key) == 12
    with without_redis(cluster):
        cluster.wait_until(lambda: cluster.counted("sluice_limits_shared") == [0, 0], "Redis isn't missed")
        assert granted(cluster, stack, key) == 12, "each gateway grants its half"
        earlier = {request for _, request in kinds_in(record)}
        answers = asyncio.run(burst(stack, crowded))
        assert answers == [(200, None)] * 60
        assert most_at_once(record, earlier) <= 4
    assert granted(cluster, stack, key) == 12, "it came back empty, so its buckets are full"
    found = cluster.settled()
    assert len(found["usage"]) == charged + 3 * 12 + 60
    assert_books_are_right(found)


def test_gateway_killed_in_mid_stream_leaves_nothing_held(cluster, stack):
    key = stack.tenants["free"]["key"]

    async def streams():
        async with session_of(stack) as session:
            began = asyncio.Event()

            async def one():
                events = 0
                try:
                    async with session.post(
                        "/v1/chat/completions", **call(key, max_tokens=WORDS, stream=True)
                    ) as answer:
                        async for line in answer.content:
                            events += line.startswith(b"data: ")
                            if events > 3:
                                began.set()
                except aiohttp.ClientError:
                    return "cut"
                return "whole"

            reading = [asyncio.create_task(one()) for _ in range(8)]
            await began.wait()
            stack.kill("gateway")
            return await asyncio.gather(*reading)

    ends = asyncio.run(streams())
    assert set(ends) <= {"cut", "whole"}
    stack.script("end_leases")
    found = cluster.settled()
    assert_books_are_right(found)
    asyncio.run(until(lambda: len(stack.pids_of("gateway")) == 2))


def test_a_gateway_without_redis_is_refused_beside_them(stack):
    done = stack.command("gateway", "--port", str(lease_port()), REDIS_URL="", SLUICE_METRICS_PORT="0")
    assert done.returncode != 0
    assert "Without REDIS_URL a database takes one gateway" in done.stdout + done.stderr


@contextmanager
def another_gateway(stack):
    """A gateway on a port of its own beside the two that share one; yields its address."""
    port = lease_port()
    process = subprocess.Popen(
        [sys.executable, "manage.py", "gateway", "--port", str(port)],
        cwd=ROOT,
        env={**stack.environment, "SLUICE_METRICS_PORT": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(until(lambda: is_ready(port)))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port):
    try:
        return ask(f"http://127.0.0.1:{port}/readyz").status == 200
    except OSError:
        return False


async def over_websocket(address, key, event, count=None):
    """The first `count` events that answer `event`, or all; then the connection is gone without a word."""
    events = []
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(address, timeout=timeout) as session:
        socket = await session.ws_connect("/v1/responses", headers={"Authorization": f"Bearer {key}"})
        await socket.send_json(event)
        while len(events) != count:
            events.append(await socket.receive_json())
            if events[-1]["type"] in {"response.completed", "response.incomplete", "response.failed", "error"}:
                break
    return events


def test_a_response_cut_ten_times_goes_on_over_websockets_of_two_gateways(cluster, stack):
    """Each socket gets one more event. Those that open and close it are enough for ten cuts, however slow it all is."""
    made = stack.tenant("cut", resume_s=120, allowed_models=[])
    create = {"type": "response.create", "model": "long-chat", "input": "go on", "max_output_tokens": 400}
    with another_gateway(stack) as other:
        gateways = (stack.base_url, other)
        events = asyncio.run(over_websocket(stack.base_url, made["key"], {**create, "resumable": True}, 1))
        resume = {"type": "response.resume", "response_id": events[0]["response"]["id"]}
        for cut in range(1, 11):
            event = {**resume, "starting_after": events[-1]["sequence_number"]}
            events += asyncio.run(over_websocket(gateways[cut % 2], made["key"], event, 1))
        assert [event["sequence_number"] for event in events] == list(range(11))
        event = {**resume, "starting_after": events[-1]["sequence_number"]}
        events += asyncio.run(over_websocket(other, made["key"], event))
        for address in gateways:
            assert asyncio.run(over_websocket(address, made["key"], resume)) == events
    told = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    whole, usage = events[-1]["response"]["output"][0]["content"][0]["text"], events[-1]["response"]["usage"]
    assert (told, usage["output_tokens"]) == (whole, 400)
    assert ("word " * MOST_WORDS).startswith(told)
    wallet = cluster.settled()["wallets"][made["id"]]
    assert wallet == {"posted": 10**9 - usage["credits_micro"], "held": 0}
