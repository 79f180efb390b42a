"""Hints make changes felt at once; without them the poll does it within its interval."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.db import connection, transaction
from django_scopes import scopes_disabled

from billing.limits.redis.connection import RedisConnection
from billing.limits.redis.store import SCRIPTS, RedisRateStore
from billing.limits.types import Taken, Waiting
from gateway.errors.refusal import Refusal
from gateway.runtime import epoch, hints
from gateway.runtime.epoch import Epoch, EpochPoller, Reading
from gateway.runtime.hints import Hints, hint_after_writes, publish
from tenancy.models import APIKey
from tenancy.services import keys
from tests.billing.limits.contract import lease
from tests.gateway.world import in_database, make_world, opened
from tests.waiting import until


@pytest.fixture(autouse=True)
def configured(redis_server, settings):
    settings.REDIS_URL = redis_server.url
    settings.SLUICE_REDIS_SECONDS = 5.0
    hints._publisher.cache_clear()


class Listening:
    """Hints that were received; `heard` waits for as many as there should be."""

    def __init__(self, server):
        self.looks = 0
        self.keys = []
        self._task = asyncio.create_task(Hints(server.url, look=self._look, wake=self.keys.append).listen())

    def _look(self):
        self.looks += 1

    async def heard(self, is_so):
        await until(lambda: is_so(self))

    async def __aenter__(self):
        await self.heard(lambda one: one.looks == 1)  # as soon as it listens: what was published before is lost
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_hint_is_heard_and_a_lost_connection_made_anew(redis_server, monkeypatch):
    monkeypatch.setattr(hints, "RETRY_SECONDS", 0.01)
    async with Listening(redis_server) as listening:
        await asyncio.to_thread(publish)
        await listening.heard(lambda one: one.looks == 2)
        redis_server.kill()
        redis_server.start_again()
        await listening.heard(lambda one: one.looks == 3)
        hints._publisher.cache_clear()
        await asyncio.to_thread(publish)
        await listening.heard(lambda one: one.looks == 4)


async def test_a_lease_that_is_given_back_is_hinted_at_only_where_some_wait(redis_server):
    to_redis = RedisConnection(redis_server.url, SCRIPTS, 5.0)
    await to_redis.open()
    store = RedisRateStore(to_redis)
    async with Listening(redis_server) as listening:
        await store.take([], lease("a", limit=1))
        await store.give_back(lease("a"))
        await store.take([], lease("b", limit=1))
        await store.take([], lease("c", limit=1), Waiting(0, 1))
        await store.give_back(lease("b"))
        await listening.heard(lambda one: one.keys)
        assert listening.keys == [lease("b").key]
        assert isinstance(await store.take([], lease("c", limit=1), Waiting(0, 1)), Taken)
    await store.close()


def test_publishing_to_a_dead_redis_costs_one_attempt(redis_server, monkeypatch):
    redis_server.kill()
    attempts = []
    publisher = hints._publisher(redis_server.url)
    sent = publisher._client.publish
    monkeypatch.setattr(publisher._client, "publish", lambda *words: (attempts.append(words), sent(*words)))
    for _ in range(50):
        publish()
    assert len(attempts) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("statement", "is_hinted"),
    [
        ("UPDATE gateway_apikey SET name = name", True),
        ('DELETE FROM "routing_routetarget"', True),
        ("SELECT * FROM gateway_apikey", False),
        ("UPDATE gateway_refusalcount SET count = count", False),
        ("UPDATE gateway_apikey_other SET name = name", False),
    ],
)
def test_only_writes_to_what_gateways_cache_are_hinted_at(monkeypatch, statement, is_hinted):
    published = []
    monkeypatch.setattr(hints, "publish", lambda: published.append(1))
    hint_after_writes(None, connection)
    try:
        with transaction.atomic():
            for _ in range(3):
                hints._hint_after_write(lambda *_: None, statement, [], False, {"connection": connection})
            assert not published, "before the commit there is nothing to see"
        assert len(published) == is_hinted
    finally:
        connection.execute_wrappers.remove(hints._hint_after_write)


def test_a_look_is_a_reading_at_once_and_many_are_one():
    read, may_read = [], threading.Semaphore(0)

    def reading(since):
        may_read.acquire(timeout=10)
        read.append(since)
        return Reading(len(read))

    async def play():
        known = Epoch()
        poller = EpochPoller(known, reading, interval=3600)
        may_read.release()
        await poller.start()
        for _ in range(5):
            poller.look()
        may_read.release()
        async with asyncio.timeout(120):
            assert await known.next() == 2
        may_read.release()
        poller.look()
        await until(lambda: known._stamp.epoch >= 3)
        await poller.close()

    asyncio.run(play())
    assert len(read) <= 4


async def revoked(runtime, world):
    """Return when the key is refused, having revoked it as any process does."""
    await runtime.principals.by_key(world.secret)

    def revoke():
        hint_after_writes(None, connection)
        try:
            with scopes_disabled():
                key = APIKey.objects.get(pk=world.key_id)
                keys.revoke_key(tenant=world.tenant, key=key)
        finally:
            connection.execute_wrappers.remove(hints._hint_after_write)

    await in_database(revoke)
    async with asyncio.timeout(120):
        while True:
            try:
                await runtime.principals.by_key(world.secret)
            except Refusal as refusal:
                return refusal.code
            await asyncio.sleep(0.005)


@pytest.mark.money
@pytest.mark.django_db(transaction=True)
async def test_revocation_is_felt_by_a_hint_before_any_poll(redis_server, tmp_path, monkeypatch):
    monkeypatch.setattr(epoch, "STALE_AFTER", 3600.0)
    world = await in_database(make_world)
    real = EpochPoller.__init__
    monkeypatch.setattr(EpochPoller, "__init__", lambda self, known: real(self, known, interval=3600))
    async with opened(tmp_path) as runtime:
        assert await revoked(runtime, world) == "api_key_revoked"


@pytest.mark.money
@pytest.mark.django_db(transaction=True)
async def test_revocation_is_felt_by_the_poll_alone_where_hints_are_cut(redis_server, tmp_path, monkeypatch):
    world = await in_database(make_world)
    monkeypatch.setattr(hints.Hints, "listen", lambda _: asyncio.Event().wait())
    readings = []
    real = epoch.read_epoch
    monkeypatch.setattr(EpochPoller.__init__, "__defaults__", (lambda since: (readings.append(1), real(since))[1], 0.5))
    async with opened(tmp_path) as runtime:
        before = len(readings)
        assert await revoked(runtime, world) == "api_key_revoked"
        assert len(readings) - before <= 3, "the next poll, half a second later, or the one that was under way"
