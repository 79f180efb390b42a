"""PostgreSQL, Redis and two gateways on one port: limits as with one, and restarts that nobody notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import chain

import aiohttp
import pytest

from inference.worker.record import BEGUN, ENDED, kinds_in
from tests.services.ports import lease_port
from tests.services.redis import RedisServer
from tests.stack.conftest import PATIENCE, ROOT, running_stack
from tests.stack.web import ask

pytestmark = [pytest.mark.money, pytest.mark.stack, pytest.mark.slow]

STEP = 0.02
MOST_WORDS = 8000  # 160 s, so that both gateways are replaced before the end on a busy machine too
WORDS = 500  # 10 s


@pytest.fixture(scope="module")
def redis_server():
    server = RedisServer.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def metrics_port():
    return lease_port(2)


@pytest.fixture(scope="module")
def two(redis_server, metrics_port):
    if not os.environ.get("DATABASE_URL"):
        pytest.skip("several gateways need PostgreSQL")
    variables = {
        "REDIS_URL": redis_server.url,
        "SLUICE_REDIS_SECONDS": "2",  # a busy machine is no dead Redis
        "SLUICE_METRICS_PORT": str(metrics_port),
        "SLUICE_DRAIN_SECONDS": "2",
        "SLUICE_QUEUE_SECONDS": "200",
    }
    options = {"step_seconds": STEP, "text": "word " * MOST_WORDS}
    with running_stack(variables, ("--gateways", "2"), chat=options) as stack:
        yield stack
        found = stack.audit()
        assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
        assert all(wallet["held"] == 0 <= wallet["posted"] for wallet in found["wallets"].values())
        assert stack.stop() == 0, "".join(stack.said[-40:])


def tenant(stack, slug, **terms):
    room = {"request_limit": 10**6, "request_burst": 10**6, "credit_limit": 10**12, "credit_burst": 10**12}
    own = json.dumps({**room, "concurrency": 64, "allowed_models": [], **terms})
    return stack.script("tenant", json.dumps({slug: 10**9}), own)[slug]["key"]


def call(key, **more):
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 4, **more}
    return {"json": body, "headers": {"Authorization": f"Bearer {key}"}}


def session_of(stack, *, keeps=False):
    connector = aiohttp.TCPConnector(limit=0, force_close=not keeps)
    return aiohttp.ClientSession(stack.base_url, connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE))


def metric(port, name):
    text = ask(f"http://127.0.0.1:{port}/metrics").text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def counted(metrics_port, name):
    return [metric(metrics_port + index, name) for index in range(2)]


async def burst(stack, key):
    """Return status and error code of each of 60 requests at once, each over a connection of its own."""
    async with session_of(stack) as session:

        async def one():
            async with session.post("/v1/chat/completions", **call(key)) as answer:
                return answer.status, (await answer.json()).get("error", {}).get("code")

        return await asyncio.gather(*(one() for _ in range(60)))


def test_burst_is_exactly_what_the_plan_says_and_both_gateways_work(two, metrics_port):
    key = tenant(two, "bursting", request_limit=12, request_burst=12, request_period_s=36_000)

    answers = asyncio.run(burst(two, key))
    assert answers.count((200, None)) == 12
    assert answers.count((429, "rate_limit_exceeded")) == 48
    assert all(count > 0 for count in counted(metrics_port, 'sluice_requests_total{endpoint="/v1/chat/completions"'))
    assert counted(metrics_port, "sluice_gateways") == [2, 2]


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


def test_concurrency_is_exactly_what_the_plan_says_and_all_get_their_turn(two):
    key = tenant(two, "crowded", concurrency=3)
    record = two.home / "worker-local.record"
    earlier = {request for _, request in kinds_in(record)}

    async def crowd():
        async with session_of(two) as session:

            async def one():
                async with session.post("/v1/chat/completions", **call(key, max_tokens=40)) as answer:
                    return answer.status

            return await asyncio.gather(*(one() for _ in range(20)))

    assert asyncio.run(crowd()) == [200] * 20
    assert len({request for _, request in kinds_in(record)} - earlier) == 20
    assert most_at_once(record, earlier) <= 3


def test_rolling_restart_fails_no_request(two):
    key, before = two.tenants["max"]["key"], set(two.pids_of("gateway"))
    assert len(before) == 2
    said = len(two.said)

    async def client(session, over):
        seen = []
        while not over.is_set():
            async with session.post("/v1/chat/completions", **call(key)) as answer:
                text = await answer.text()
                seen.append(answer.status if answer.status == 200 else text)
        return seen

    async def roll():
        over = asyncio.Event()
        async with session_of(two) as fresh, session_of(two, keeps=True) as kept:
            clients = [asyncio.create_task(client(session, over)) for session in [fresh, kept] * 6]
            two.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(PATIENCE):
                while before & set(two.pids_of("gateway")):
                    await asyncio.sleep(0.1)
                    assert not any(one.done() for one in clients), [one for one in clients if one.done()]
            over.set()
            return await asyncio.gather(*clients)

    seen = asyncio.run(roll())
    assert all(seen), "all of them asked all along"
    assert set(chain(*seen)) == {200}
    assert len(set(two.pids_of("gateway")) - before) == 2
    assert sum("is replaced" in line for line in two.said[said:]) == 2


def test_stream_and_websocket_of_a_gateway_that_leaves_are_told_to_come_again(two):
    key = two.tenants["max"]["key"]
    before = set(two.pids_of("gateway"))

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

    async def leave():
        began, rests = asyncio.Event(), asyncio.Event()
        async with session_of(two) as session:
            stream = asyncio.create_task(streaming(session, began))
            socket = asyncio.create_task(resting(session, rests))
            await began.wait()
            await rests.wait()
            two.process.send_signal(signal.SIGHUP)
            return await asyncio.gather(stream, socket)

    events, (said, code) = asyncio.run(leave())
    assert json.loads(events[-1])["error"]["code"] == "server_draining"
    assert code == 1012
    assert said[-1]["type"] == "error"
    assert said[-1]["error"]["code"] == "server_draining"
    asyncio.run(replaced(two, before))


async def replaced(stack, before):
    await until(lambda: not before & set(pids := stack.pids_of("gateway")) and len(pids) == 2)


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - other processes are what is waited for
            await asyncio.sleep(0.05)


def test_requests_go_on_without_redis_and_with_it_again(two, redis_server, metrics_port):
    key = two.tenants["business"]["key"]
    redis_server.kill()
    for _ in range(20):
        assert ask(f"{two.base_url}/v1/chat/completions", call(key)["json"], key=key).status == 200
    asyncio.run(until(lambda: counted(metrics_port, "sluice_limits_shared") == [0, 0]))
    ready = ask(f"http://127.0.0.1:{metrics_port}/readyz")
    assert (ready.status, "limits" in ready.json["notes"]) == (200, True)
    redis_server.start_again()
    asyncio.run(until(lambda: counted(metrics_port, "sluice_limits_shared") == [1, 1]))


def test_limits_without_redis_are_off_by_what_is_documented_and_no_more(two, redis_server, metrics_port):
    """Bucket and concurrency of docs/scaling.md: *B* more while Redis is away, another *B* when it comes back empty."""
    room = {"request_limit": 12, "request_burst": 12, "request_period_s": 36_000}
    key, crowded = tenant(two, "outage", **room), tenant(two, "crowded-outage", concurrency=4)
    record, charged = two.home / "worker-local.record", len(two.audit()["usage"])
    assert asyncio.run(burst(two, key)).count((200, None)) == 12
    redis_server.kill()
    asyncio.run(until(lambda: counted(metrics_port, "sluice_limits_shared") == [0, 0]))
    assert asyncio.run(burst(two, key)).count((200, None)) == 12, "each gateway grants its half"
    assert asyncio.run(burst(two, key)).count((200, None)) == 0
    earlier = {request for _, request in kinds_in(record)}
    answers = asyncio.run(burst(two, crowded))
    assert answers == [(200, None)] * 60
    assert most_at_once(record, earlier) <= 4
    redis_server.start_again()
    asyncio.run(until(lambda: counted(metrics_port, "sluice_limits_shared") == [1, 1]))
    assert asyncio.run(burst(two, key)).count((200, None)) == 12, "it came back empty, so its buckets are full"
    assert asyncio.run(burst(two, key)).count((200, None)) == 0
    found = two.audit()
    assert len(found["usage"]) == charged + 3 * 12 + 60
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]


def test_gateway_killed_in_mid_stream_leaves_nothing_held(two):
    key = two.tenants["free"]["key"]

    async def streams():
        async with session_of(two) as session:
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
            two.kill("gateway")
            return await asyncio.gather(*reading)

    ends = asyncio.run(streams())
    assert set(ends) <= {"cut", "whole"}
    found = two.audit()
    assert found["holds"] == 0
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
    asyncio.run(until(lambda: len(two.pids_of("gateway")) == 2))


def test_a_gateway_without_redis_is_refused_beside_them(two):
    environment = {name: value for name, value in two.environment.items() if name != "REDIS_URL"}
    environment["SLUICE_METRICS_PORT"] = "0"
    done = subprocess.run(
        [sys.executable, "manage.py", "gateway", "--port", str(lease_port())],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
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


def test_a_response_cut_ten_times_goes_on_over_websockets_of_two_gateways(two):
    """Each socket gets one more event. Those that open and close it are enough for ten cuts, however slow it all is."""
    made = two.script("tenant", json.dumps({"cut": 10**9}), json.dumps({"resume_s": 120, "allowed_models": []}))["cut"]
    create = {"type": "response.create", "model": "fake-chat", "input": "go on", "max_output_tokens": 600}
    with another_gateway(two) as other:
        gateways = (two.base_url, other)
        events = asyncio.run(over_websocket(two.base_url, made["key"], {**create, "resumable": True}, 1))
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
    assert (told, usage["output_tokens"]) == (whole, 600)
    assert ("word " * MOST_WORDS).startswith(told)
    wallet = two.audit()["wallets"][made["id"]]
    assert wallet == {"posted": 10**9 - usage["credits_micro"], "held": 0}
