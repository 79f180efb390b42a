"""A gateway that is replaced: others accept on its socket, and nobody who is connected to it notices."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest

from base.http import send_json
from gateway.asgi import application
from gateway.http.listener import server as serving
from gateway.http.listener.bounds import Bounds, Listener
from gateway.http.listener.server import Server, configuration
from gateway.runtime.requests import Stage
from tests.gateway.apis.server import lifespan_with
from tests.gateway.apis.world import KEY, make_world
from tests.waiting import until


class Gateway:
    """A server on a socket that outlives it; requests for ``/slow`` wait for `go_on`."""

    def __init__(self, listening, leave_seconds=60.0):
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.asked = self.answered = 0
        config = configuration(self._answer, Listener(Bounds.of_settings()), lifespan="off", interface="asgi3")
        self.server = Server(config, leave_seconds=leave_seconds)
        self.task = asyncio.create_task(self.server.serve([listening.dup()]))

    async def _answer(self, scope, receive, send):
        self.asked += 1
        if scope["path"] == "/slow":
            self.began.set()
            await self.go_on.wait()
        self.answered += 1
        await send_json(send, 200, {})

    async def up(self):
        await until(lambda: self.server.started)
        return self


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


@pytest.fixture
async def client(listening):
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{listening.getsockname()[1]}", connector=connector, timeout=aiohttp.ClientTimeout(total=120)
    ) as session:
        yield session


async def ask(client, path="/"):
    async with client.get(path) as answer:
        return answer.status, answer.headers.get("connection")


async def test_what_runs_ends_and_a_kept_connection_gets_its_last_answer(listening, client):
    old = await Gateway(listening).up()
    assert await ask(client) == (200, None)  # leaves an idle connection behind
    running = [asyncio.create_task(ask(client, "/slow")) for _ in range(2)]  # one on that, one on a new connection
    await until(lambda: old.asked == 3)
    old.server.leave()
    await until(lambda: old.server.config.encoded_headers)
    old.go_on.set()
    assert {status for status, _ in await asyncio.gather(*running)} == {200}
    assert old.answered == 3
    await old.task
    new = await Gateway(listening).up()
    assert await ask(client) == (200, None)
    new.server.should_exit = True
    await new.task


async def test_no_connection_is_refused_while_one_ends_and_another_starts(listening, client):
    old = await Gateway(listening).up()
    assert (await ask(client))[0] == 200
    old.server.leave()
    await old.task
    waiting = [asyncio.create_task(ask(client)) for _ in range(20)]
    await asyncio.sleep(0)
    new = await Gateway(listening).up()
    assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
    new.server.should_exit = True
    await new.task


async def test_request_on_a_connection_that_was_idle_is_answered_as_its_last(listening, monkeypatch):
    monkeypatch.setattr(serving, "IDLE_SECONDS", 60.0)
    old = await Gateway(listening).up()
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"connection: close" not in (await reader.readuntil(b"{}")).lower()
    old.server.leave()
    await until(lambda: old.server.config.encoded_headers)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    last = await reader.read()
    assert last.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in last.lower()
    await old.task
    writer.close()
    await writer.wait_closed()


async def test_what_runs_too_long_is_not_waited_for(listening, client, monkeypatch):
    """Nor is it once more when the server ends: only a stop has a grace of its own."""
    graces = []
    leave = Server._leave

    async def counted(self, seconds):
        graces.append(seconds)
        await leave(self, seconds)

    monkeypatch.setattr(Server, "_leave", counted)
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.005)
    old = await Gateway(listening, leave_seconds=0.01).up()
    old.server.config.timeout_graceful_shutdown = 0.05
    slow = asyncio.create_task(ask(client, "/slow"))
    await old.began.wait()
    old.server.leave()
    await old.task
    assert graces == [0.01, 0.0]
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


ASKED = b'{"model": "small", "messages": [{"role": "user", "content": "Hi"}]}'
HEAD = (
    f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    f"content-type: application/json\r\ncontent-length: {len(ASKED)}\r\n\r\n"
).encode()


@asynccontextmanager
async def stopping(listening, world):
    """A server of the whole application, to which `stop` says SIGTERM; it takes no more connections then."""
    config = configuration(application, Listener(Bounds.of_settings()), interface="asgi3")
    config.load()
    config.lifespan_class = lifespan_with(world.runtime)
    server = Server(config)
    ended = asyncio.create_task(server.serve([listening.dup()]))

    async def stop():
        server.should_exit = True
        await until(lambda: world.runtime.requests.stage is not Stage.SERVING)

    await until(lambda: server.started)
    try:
        yield SimpleNamespace(stop=stop, ended=ended, server=server)
    finally:
        server.should_exit = True
        await ended


async def connected(listening, server):
    """A connection that the server has accepted."""
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    await until(lambda: server.server_state.connections)
    return reader, writer


@pytest.mark.parametrize("began", [b"", HEAD[:20], HEAD, HEAD + ASKED[:5]])
async def test_request_on_an_accepted_connection_is_answered_by_a_gateway_that_stops(listening, began, monkeypatch):
    """It was accepted just before the gateway stopped: no successor will ever see what comes on it."""
    monkeypatch.setattr(serving, "PATIENCE", 60.0)
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.0)
    world = await make_world()
    async with stopping(listening, world) as gateway:
        reader, writer = await connected(listening, gateway.server)
        writer.write(began)
        await gateway.stop()
        writer.write((HEAD + ASKED)[len(began) :])
        answer = await reader.read()
        await gateway.ended
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert b"\r\nconnection: close" in answer
    writer.close()
    await world.settled()


async def test_queued_request_has_its_turn_in_a_gateway_that_stops(listening, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 60.0)
    world = await make_world()
    world.set_principal(concurrency=1)
    world.starting = asyncio.Event()
    async with stopping(listening, world) as gateway:
        streams = [await connected(listening, gateway.server) for _ in range(2)]
        for _, writer in streams:
            writer.write(HEAD + ASKED)
        await until(lambda: world.runtime.requests.gate.waiting)
        await gateway.stop()
        world.starting.set()
        answers = [await reader.read() for reader, _ in streams]
    assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    assert all(b"\r\nconnection: close" in answer for answer in answers)
    for _, writer in streams:
        writer.close()
    await world.settled()


async def test_what_still_runs_or_waits_when_the_grace_is_over_is_refused(listening, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 0.01)
    world = await make_world()
    world.set_principal(concurrency=1)
    world.set_options(hang_at=1)
    async with stopping(listening, world) as gateway:
        streams = [await connected(listening, gateway.server) for _ in range(2)]
        for _, writer in streams:
            writer.write(HEAD + ASKED)
        await until(lambda: world.runtime.requests.gate.waiting)
        await gateway.stop()
        answers = [await reader.read() for reader, _ in streams]
    assert {answer[:12] for answer in answers} == {b"HTTP/1.1 503"}
    assert all(b"server_draining" in answer for answer in answers)
    for _, writer in streams:
        writer.close()
    await world.settled()


@pytest.mark.parametrize("began", [HEAD[:20], HEAD, HEAD + ASKED[:5]])
async def test_request_that_is_not_whole_when_the_grace_is_over_is_refused(listening, began, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 0.0)
    world = await make_world()
    async with stopping(listening, world) as gateway:
        reader, writer = await connected(listening, gateway.server)
        [connection] = gateway.server.server_state.connections
        writer.write(began)
        await until(lambda: connection._is_in_head or connection._is_in_body)
        await gateway.stop()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503"), answer
    assert b"\r\nconnection: close" in answer
    assert b"server_draining" in answer
    await world.settled()


async def test_idle_connection_does_not_hold_a_stop_up(listening, client, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 60.0)
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.0)
    gateway = await Gateway(listening).up()
    assert await ask(client) == (200, None)
    gateway.server.should_exit = True
    async with asyncio.timeout(30):  # half of its patience
        await gateway.task


async def test_what_runs_without_a_connection_is_waited_for_too(listening):
    """A batch's lines and responses in the background have none: a gateway that was replaced cut them at once."""
    gateway = await Gateway(listening).up()
    live = {1: "a line of a batch"}
    gateway.server.lifespan.state["runtime"] = SimpleNamespace(
        requests=SimpleNamespace(live=live, leave=lambda: None, drain=drained)
    )
    gateway.server.leave()
    await until(lambda: gateway.server.config.encoded_headers)
    for _ in range(3):
        await asyncio.sleep(serving.LOOK_SECONDS)
    assert not gateway.task.done()
    live.clear()
    await gateway.task


async def drained(_):
    """Nothing is left."""
