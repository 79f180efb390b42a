"""A middlebox that goes deaf: connections stay, nothing passes any more. Everything goes on over fresh ones."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress

import pytest
from django.db import OperationalError, connection, connections

from base.database import bounded_connection, threads
from base.ids import uuid7
from billing.writer.postgresql import driver
from gateway.generation.generation import start_generation
from gateway.runtime import epoch, readiness
from tenancy.services import keys
from tests.gateway.doubles import collect, make_intent
from tests.gateway.world import assert_books, in_database, make_world, opened, principal_of, settled

pytestmark = [
    pytest.mark.money,
    pytest.mark.django_db(transaction=True),
]


class Middlebox:
    """A proxy in front of the database's server. What it has accepted before `go_deaf` is swallowed from then on."""

    def __init__(self, host, port):
        self._there = (host, port)
        self._writers = []
        self.accepted = self.swallowed = self.deaf_below = 0
        self.swallowing = asyncio.Event()

    def go_deaf(self):
        self.deaf_below = self.accepted

    async def serve(self, reader, writer):
        number = self.accepted
        self.accepted += 1
        there_reader, there_writer = await asyncio.open_connection(*self._there)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._pump(number, reader, there_writer), self._pump(number, there_reader, writer))

    async def _pump(self, number, source, sink):
        with suppress(OSError):
            while data := await source.read(65536):
                if number < self.deaf_below:
                    self.swallowed += 1
                    continue
                sink.write(data)
                await sink.drain()
        if number >= self.deaf_below:
            sink.close()

    async def close(self):
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def behind_middlebox():
    """Have all new connections go through a middlebox."""
    await in_database(connections["default"].close_pool)
    named = connections.settings["default"]
    real = (named["HOST"], named["PORT"])
    box = Middlebox(named["HOST"], int(named["PORT"]))
    server = await asyncio.start_server(box.serve, "127.0.0.1", 0)
    named |= {"HOST": "127.0.0.1", "PORT": server.sockets[0].getsockname()[1]}
    try:
        yield box
    finally:
        named |= dict(zip(("HOST", "PORT"), real, strict=True))
        await in_database(connections["default"].close_pool)
        server.close()
        await box.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    for module, name in (
        (bounded_connection, "CHECK_SECONDS"),
        (threads, "ANSWER_SECONDS"),
        (epoch, "SILENT_AFTER"),
        (readiness, "LOOK_SECONDS"),
        (driver, "ANSWER_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.2)


def stuck_in(pool, calls, ready, go):
    """Occupy every thread of `pool` with a connection that is asked something after `go`."""

    def ask():
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            ready.release()
            go.wait(120)
            cursor.execute("SELECT 1")

    return [asyncio.ensure_future(pool.run(ask)) for _ in range(calls)]


async def until_answered(ask):
    """Return what `ask` does once it does."""
    async with asyncio.timeout(120):
        while True:
            with suppress(Exception):
                return await ask()
            await asyncio.sleep(0.01)


async def ready_again(runtime):
    assert not any((await runtime.readiness()).values())


@pytest.mark.postgresql
async def test_everything_goes_on_over_fresh_connections(tmp_path):
    world = await in_database(make_world, text="one two three")
    _, other = await in_database(
        lambda: keys.create_key(tenant=world.tenant, project=world.project, name="not asked for yet")
    )
    async with behind_middlebox() as box, opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        await collect(await start_generation(runtime, principal, make_intent(), uuid7()))
        assert not any((await runtime.readiness()).values())
        ready, go = threading.Semaphore(0), threading.Event()
        stuck = [*stuck_in(runtime.threads, 4, ready, go), *stuck_in(runtime.own_threads, 2, ready, go)]
        for _ in stuck:
            await asyncio.to_thread(ready.acquire)
        box.go_deaf()
        before = box.accepted
        go.set()
        failures = await asyncio.gather(*stuck, return_exceptions=True)
        assert [type(failure) for failure in failures] == [OperationalError] * 6
        assert box.swallowed >= 6

        found = await until_answered(lambda: runtime.principals.by_key(other))
        assert found.tenant == world.tenant.id
        await until_answered(lambda: runtime.catalogue.refresh(runtime.catalogue.snapshot.epoch))
        assert await until_answered(runtime.catalogue.epoch.current) == runtime.catalogue.snapshot.epoch
        await until_answered(lambda: ready_again(runtime))
        generation = await until_answered(lambda: start_generation(runtime, principal, make_intent(), uuid7()))
        *_, outcome, _ = await collect(generation)
        assert outcome.charge
        await settled(runtime)
        assert box.accepted > before
    await in_database(lambda: assert_books(world, records=2))
